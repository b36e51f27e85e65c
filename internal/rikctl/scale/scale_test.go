package scale

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScaled(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{"workload a b": {"a", "b"}, "wl/a workload/b node/c": {"a", "b"}, "deployment a": nil} {
		if diff := cmp.Diff(want, scaled(strings.Fields(line))); diff != "" {
			t.Errorf("scaled(%q) (-want +got):\n%s", line, diff)
		}
	}
}
