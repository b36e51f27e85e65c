package executable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// create creates a file with a mode, and returns its path.
func create(t *testing.T, dir, name string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// Not parallel: it changes the PATH.
func TestFindFrom(t *testing.T) {
	empty, beside, onPath := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("PATH", onPath)
	if path, err := FindFrom(filepath.Join(empty, "rik"), "tool"); err == nil {
		t.Errorf("FindFrom() without any = %q", path)
	}
	second := create(t, onPath, "tool", 0o700)
	for _, self := range []string{"", filepath.Join(empty, "rik")} {
		if got, err := FindFrom(self, "tool"); err != nil || got != second {
			t.Errorf("FindFrom(%q) = %q, %v, want %q", self, got, err, second)
		}
	}
	first := create(t, beside, "tool", 0o600)
	if got, err := FindFrom(filepath.Join(beside, "rik"), "tool"); err != nil || got != second {
		t.Errorf("FindFrom() with a file that is not executable = %q, %v, want %q", got, err, second)
	}
	if err := os.Chmod(first, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := FindFrom(filepath.Join(beside, "rik"), "tool"); err != nil || got != first {
		t.Errorf("FindFrom() = %q, %v, want %q", got, err, first)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, want := range map[string]string{
		create(t, dir, "program", 0o755): "",
		create(t, dir, "plain", 0o644):   "is not executable",
		dir:                              "is not a file",
		dir + "/none":                    "does not exist",
	} {
		if err := Check(path); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("Check(%s) = %v, want %q", path, err, want)
		}
	}
}
