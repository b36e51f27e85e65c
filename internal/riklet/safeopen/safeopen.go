// Package safeopen opens files that an untrusted user may have created. It reads only regular
// files: opening a FIFO waits for a writer, and opening a device may have side effects.
package safeopen

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NotRegularError names the type of a file that is not a regular file.
type NotRegularError struct{ Path, Is string }

func (e *NotRegularError) Error() string { return e.Path + " is not a regular file, it is " + e.Is }

// Open opens a regular file for reading. For other files it returns a *NotRegularError. It follows
// symbolic links.
func Open(path string) (*os.File, error) { return open(path, 0) }

// OpenNoFollow is Open for a path whose last component must not be a symbolic link.
func OpenNoFollow(path string) (*os.File, error) { return open(path, unix.O_NOFOLLOW) }

func open(path string, flags int) (*os.File, error) {
	// O_PATH opens the path without side effects, and the descriptor stays on the same file.
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
