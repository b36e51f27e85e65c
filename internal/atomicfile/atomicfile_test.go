package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

var writers = map[string]func(string, []byte) error{"Write": Write, "WriteUnsynced": WriteUnsynced}

func TestWriteReplaces(t *testing.T) {
	t.Parallel()
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
				t.Fatal(err)
			}
			old, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer old.Close()
			if err := write(path, []byte("new")); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != "new" {
				t.Errorf("the file has %q, %v, want the new content", got, err)
			}
			content := make([]byte, 8)
			if n, err := old.Read(content); err != nil || string(content[:n]) != "old" {
				t.Errorf("a reader of the old file got %q, %v, want the old content", content[:n], err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the file has %v, %v, want mode 0600", info, err)
			}
			wantOnly(t, path)
		})
	}
}

// A directory at the path makes the rename fail, after the content was written.
func TestFailedWriteLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "file")
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := write(path, []byte("new")); err == nil {
				t.Error("a file replaced a directory, want an error")
			}
			wantOnly(t, path)
		})
	}
}

func TestWriteNeedsTheDirectory(t *testing.T) {
	t.Parallel()
	for name, write := range writers {
		if err := write(filepath.Join(t.TempDir(), "none", "file"), nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s() in a missing directory = %v, want ErrNotExist", name, err)
		}
	}
}

// wantOnly fails the test unless the directory has only that entry.
func wantOnly(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("the directory has %v, %v, want only %s", entries, err, filepath.Base(path))
	}
}

func TestCopySetsTheMode(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "program")
	for _, mode := range []os.FileMode{0o755, 0o644} {
		if err := Copy(path, strings.NewReader(mode.String()), mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != mode {
			t.Errorf("the file has the mode %v, %v, want %v", info.Mode(), err, mode)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != mode.String() {
			t.Errorf("the file is %q, %v", text, err)
		}
	}
	if err := Copy(path, iotest.ErrReader(os.ErrClosed), 0o600); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Copy() = %v, want the error of the reader", err)
	}
	wantOnly(t, path)
}
