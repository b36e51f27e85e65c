package network

import (
	"os"
	"path/filepath"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
)

// The lock directory must belong to root alone, or the locks have no effect.
func TestPrivilegedLocksAreWritableByRootOnly(t *testing.T) {
	privileged.Require(t)
	base := t.TempDir()
	path := func(name string) string { return filepath.Join(base, name) }
	for name, prepare := range map[string]func(string) error{
		"open":    func(p string) error { return os.Mkdir(p, 0o700) },
		"link":    func(p string) error { return os.Symlink(base, p) },
		"file":    func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"foreign": func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		if err := prepare(path(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(path("open"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path("foreign"), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"open", "link", "file", "foreign"} {
		if got, err := lockPath(path(name)); err == nil {
			t.Errorf("%s: locks are made at %s", name, got)
		}
	}
	first, err := lockPath(path("new"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := lockPath(path("new")); err != nil || again != first {
		t.Errorf("the same namespace has the locks %s and %s (%v)", first, again, err)
	}
}
