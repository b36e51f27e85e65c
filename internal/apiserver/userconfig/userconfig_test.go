package userconfig

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"
)

// home returns a user with an empty home directory, and a configuration to copy.
func home(t *testing.T) (u *user.User, source string) {
	t.Helper()
	source = filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(source, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &user.User{Uid: strconv.Itoa(os.Getuid()), Gid: strconv.Itoa(os.Getgid()), HomeDir: t.TempDir()}, source
}

func TestCopyTo(t *testing.T) {
	t.Parallel()
	u, source := home(t)
	path, err := copyTo(source, u)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "secret" || path != filepath.Join(u.HomeDir, ".rik", "config.yaml") {
		t.Errorf("copyTo() wrote %q to %s, %v", raw, path, err)
	}
	for file, want := range map[string]fs.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has the mode %v, %v, want %v", file, info.Mode(), err, want)
		}
	}
	// A configuration that the user has stays.
	if err := os.WriteFile(path, []byte("own"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := copyTo(source, u); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the second copyTo() = %v, want ErrExist", err)
	}
	if raw, _ := os.ReadFile(path); string(raw) != "own" {
		t.Errorf("the user's configuration is now %q", raw)
	}
}

// TestLinksAreNotFollowed checks that root writes no file outside of the home directory, and replaces
// no file.
func TestLinksAreNotFollowed(t *testing.T) {
	t.Parallel()
	t.Run("the directory", func(t *testing.T) {
		t.Parallel()
		u, source := home(t)
		outside := t.TempDir()
		if err := os.Symlink(outside, filepath.Join(u.HomeDir, ".rik")); err != nil {
			t.Fatal(err)
		}
		if path, err := copyTo(source, u); err == nil {
			t.Errorf("copyTo() wrote to %s through a link", path)
		}
		if files, err := os.ReadDir(outside); err != nil || len(files) > 0 {
			t.Errorf("the directory outside contains %v, %v", files, err)
		}
	})
	t.Run("the file", func(t *testing.T) {
		t.Parallel()
		u, source := home(t)
		outside := filepath.Join(t.TempDir(), "shadow")
		if err := os.Mkdir(filepath.Join(u.HomeDir, ".rik"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(u.HomeDir, ".rik", "config.yaml")); err != nil {
			t.Fatal(err)
		}
		if _, err := copyTo(source, u); err == nil {
			t.Error("copyTo() wrote through a link")
		}
		if _, err := os.Lstat(outside); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the target of the link: %v, want none", err)
		}
	})
}
