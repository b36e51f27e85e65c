package firecracker

import (
	"os"
	"path/filepath"
	"testing"
)

func TestJailDir(t *testing.T) {
	t.Parallel()
	if got := JailDir("", "/var/lib/riklet"); got != "/var/lib/riklet/jails" {
		t.Errorf("the default directory is %s", got)
	}
	if got := JailDir("/srv/jails", "/var/lib/riklet"); got != "/srv/jails" {
		t.Errorf("the given directory is %s", got)
	}
	dir := filepath.Join(t.TempDir(), "jails")
	if err := MakeJailDir(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has the mode %v, %v, want 0700", info.Mode(), err)
	}
	jail := filepath.Join(dir, execName, "m-1")
	if err := os.MkdirAll(jail, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := RemoveJailDir(dir); err != nil {
		t.Errorf("RemoveJailDir() with a jail = %v", err)
	}
	if _, err := os.Stat(jail); err != nil {
		t.Errorf("the jail: %v", err)
	}
	if err := os.Remove(jail); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := RemoveJailDir(dir); err != nil {
			t.Errorf("RemoveJailDir() = %v", err)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the empty directory: %v", err)
	}
}
