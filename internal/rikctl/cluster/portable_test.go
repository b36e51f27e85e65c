package cluster

import (
	"strings"
	"testing"

	"rik.dev/rik/internal/rikctl/rikctltest"
)

func TestPortableTakesOneContextWhole(t *testing.T) {
	t.Parallel()
	data, err := portable(rikctltest.Kubeconfig(t, t.TempDir()), "west")
	if err != nil {
		t.Fatal(err)
	}
	if text := string(data); !strings.Contains(text, rikctltest.Canary) || strings.Contains(text, "east") || strings.Contains(text, "tokenFile") {
		t.Errorf("portable = %s", text)
	}
}
