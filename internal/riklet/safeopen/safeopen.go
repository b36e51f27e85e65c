// Package safeopen opens files that may be anything: what a stranger put there is read only
// when it is a regular file. To open a FIFO is to wait for a writer, and a device does
// whatever it does when it is opened.
package safeopen

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NotRegularError says what a path leads to instead of a regular file.
type NotRegularError struct{ Path, Is string }

func (e *NotRegularError) Error() string { return e.Path + " is not a regular file, it is " + e.Is }

// Open opens a regular file for reading; anything else is a *NotRegularError. A link is
// followed.
func Open(path string) (*os.File, error) { return open(path, 0) }

// OpenNoFollow is Open for a path whose last name may not be a link.
func OpenNoFollow(path string) (*os.File, error) { return open(path, unix.O_NOFOLLOW) }

func open(path string, flags int) (*os.File, error) {
	// O_PATH does nothing of what opening does, and what it leads to stays the same.
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG {
		return nil, &NotRegularError{path, name(kind)}
	}
	in, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(in), path), nil
}

func name(kind uint32) string {
	switch kind {
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFSOCK:
		return "a socket"
	default:
		return "a device"
	}
}
