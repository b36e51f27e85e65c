package safeopen

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	socket, err := new(net.ListenConfig).Listen(t.Context(), "unix", path("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := errors.Join(
		os.WriteFile(path("file"), []byte("content"), 0o600),
		unix.Mkfifo(path("fifo"), 0o600),
		os.Symlink("file", path("link")),
		os.Symlink("fifo", path("to fifo")),
	); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name                  string
		followed, notFollowed string // what it is instead of a regular file
	}{
		{"file", "", ""},
		{"link", "", "a symbolic link"},
		{"fifo", "a FIFO", "a FIFO"},
		{"to fifo", "a FIFO", "a symbolic link"},
		{"socket", "a socket", "a socket"},
		{".", "a directory", "a directory"},
		{"/dev/zero", "a device", "a device"},
	} {
		target := tc.name
		if !filepath.IsAbs(target) {
			target = path(target)
		}
		check(t, "Open", Open, target, tc.followed)
		check(t, "OpenNoFollow", OpenNoFollow, target, tc.notFollowed)
	}
	if _, err := Open(path("absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open of nothing: %v, want %v", err, os.ErrNotExist)
	}
}

func check(t *testing.T, what string, open func(string) (*os.File, error), path, is string) {
	t.Helper()
	f, err := open(path)
	var not *NotRegularError
	switch {
	case is == "" && err != nil:
		t.Errorf("%s(%s): %v", what, path, err)
	case is == "":
		defer f.Close()
		if data, err := io.ReadAll(f); err != nil || string(data) != "content" {
			t.Errorf("%s(%s) reads %q, %v", what, path, data, err)
		}
	case !errors.As(err, &not) || not.Path != path || not.Is != is:
		t.Errorf("%s(%s): %v, want that it is %s", what, path, err, is)
	}
}
