package oci

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// scripted returns a runtime that fails to pause some times, and reports the given status for
// every container.
func scripted(t *testing.T, failures int, status string) (r program, pauses func() int) {
	t.Helper()
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	path := filepath.Join(dir, "runtime")
	script := `#!/bin/sh
case "$3" in
state) echo '{"status": "` + status + `"}' ;;
pause)
	echo pause >>"` + calls + `"
	[ "$(wc -l <"` + calls + `")" -gt ` + strconv.Itoa(failures) + ` ] || { echo unable to freeze >&2; exit 1; } ;;
*) exit 2 ;;
esac
`
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return program{"scripted", path, dir}, func() int {
		b, err := os.ReadFile(calls)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "pause")
	}
}

// On a busy node, runc cannot always pause at once. Of several containers, some may already be
// paused at the next attempt.
func TestPauseIsRetried(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		failures int
		status   string
		pauses   int
		err      string
	}{
		{"at once", 0, "running", 1, ""},
		{"on a busy node", 2, "running", 3, ""},
		{"paused before", 1000, "paused", 1, ""},
		{"never", 1000, "running", maxHoldCalls, "unable to freeze"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, pauses := scripted(t, c.failures, c.status)
			err := r.hold(t.Context(), "c", true)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			if n := pauses(); n != c.pauses {
				t.Errorf("paused %d times, want %d", n, c.pauses)
			}
		})
	}
}

func TestRuncVersions(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]bool{
		"runc version 1.1.5+ds1\ncommit: x": false, "runc version 1.2.7": false, "runc version 1.2.8\n": true, "runc version 1.3.2": false,
		"runc version 1.3.3-rc.1": true, "runc version 1.4.0": true, "runc version 1.5.2\nspec: 1.3.0": true, "runc version 2.0.0": true, "runc version 0.9.9": false,
	} {
		version, ok := runcVersion(out)
		if !ok || isSafeVersion(version) != want {
			t.Errorf("%q: version %v, %v; safe %v, want %v", out, version, ok, isSafeVersion(version), want)
		}
	}
	if _, ok := runcVersion("crun version 1.8"); ok {
		t.Error("crun is taken for runc")
	}
}
