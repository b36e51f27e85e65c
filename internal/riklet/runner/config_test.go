package runner

import (
	"strings"
	"testing"

	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/microvm"
)

// TestSocketsFit checks that a run directory of the maximum length has room for each socket of an
// instance.
func TestSocketsFit(t *testing.T) {
	t.Parallel()
	run := "/" + strings.Repeat("r", maxSocketPath-socketRoom-1)
	uid := strings.Repeat("u", engine.MaxUID)
	p := engine.Paths{Run: run}
	for _, path := range []string{p.Socket(uid), microvm.GuestSocket(p, uid)} {
		if len(path) > maxSocketPath {
			t.Errorf("the socket %s needs %d bytes, the limit is %d", path[len(run):], len(path), maxSocketPath)
		}
	}
	for length, want := range map[string]bool{run: false, run + "r": true} {
		err := Config{Root: "/state", Run: length, Shim: "/shim"}.Validate()
		if got := strings.Contains(err.Error(), "too long for the sockets"); got != want {
			t.Errorf("Validate with a run directory of %d bytes = %v, want a refusal: %v", len(length), err, want)
		}
	}
}
