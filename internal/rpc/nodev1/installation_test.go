package nodev1

import "testing"

// Node objects contain it, so it must not change from one release to the next.
func TestInstallationID(t *testing.T) {
	t.Parallel()
	if got := InstallationID(""); got != "" {
		t.Errorf("InstallationID of no key = %q, want none", got)
	}
	if got, want := InstallationID("key"), "465ea3941584e19581cefa71ef7c4235"; got != want {
		t.Errorf("InstallationID(key) = %q, want %q", got, want)
	}
}
