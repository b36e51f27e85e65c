package nodev1

import (
	"strings"
	"testing"
)

// TestMismatch: the message names both versions, and the next step is to upgrade the older one.
func TestMismatch(t *testing.T) {
	t.Parallel()
	older, newer := Program{Version: "v1.2.0", Protocol: 1}, Program{Version: "v1.3.0", Protocol: 2}
	for name, tc := range map[string]struct {
		riklet, controller Program
		want               []string
	}{
		"the same":          {older, older, nil},
		"same protocol":     {Program{Version: "v1.2.1", Protocol: 1}, older, nil},
		"an older riklet":   {older, newer, []string{`node "n1"`, "v1.2.0", "version 1", "v1.3.0", "version 2", "install rik v1.3.0 on the node and restart its riklet"}},
		"a newer riklet":    {newer, older, []string{`node "n1"`, "v1.2.0", "v1.3.0", "install rik v1.3.0 on the server and restart it"}},
		"one of no version": {Program{}, newer, []string{"rik of an unknown version with version 0", "v1.3.0"}},
	} {
		got := Mismatch("n1", tc.riklet, tc.controller)
		if (got == "") != (tc.want == nil) {
			t.Errorf("%s: Mismatch() = %q", name, got)
		}
		for _, want := range tc.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: Mismatch() = %q, want it to say %q", name, got, want)
			}
		}
	}
}
