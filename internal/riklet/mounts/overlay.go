package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// UnfitError reports that the files which containers write cannot be in a directory.
type UnfitError struct {
	// Dir is the directory, without symbolic links. It is empty if the kernel has no overlay.
	Dir string
	// FileSystem is the type of the file system of the directory.
	FileSystem string
	cause      error
}

// Error implements error.
func (e *UnfitError) Error() string {
	if e.Dir == "" {
		return fmt.Sprintf("the kernel does not support overlay: %v", e.cause)
	}
	return fmt.Sprintf("%s is on %s, which cannot hold the upper layers of containers: %v", e.Dir, e.FileSystem, e.cause)
}

// Unwrap returns the kernel's error.
func (e *UnfitError) Unwrap() error { return e.cause }

// ProbeUpper checks whether upper layers of overlay mounts can be in a directory. It works in a
// temporary directory in it, and mounts nothing. The upper layer of an overlay cannot be on an
// overlay, as inside a container, nor on a network file system. See "Upper and lower" in the
// kernel's Documentation/filesystems/overlayfs.rst. The error is an *UnfitError if it cannot.
func ProbeUpper(dir string) (err error) {
	dir, err = os.MkdirTemp(dir, "probe-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) {
		return nil // a kernel before 5.2 reports errors only at the mount
	}
	if err != nil {
		return &UnfitError{cause: err}
	}
	defer unix.Close(fd)
	for option, sub := range map[string]string{"lowerdir": "lower", "upperdir": "upper", "workdir": "work"} {
		path := filepath.Join(dir, sub)
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		if err := unix.FsconfigSetString(fd, option, path); err != nil {
			return unfit(dir, err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return unfit(dir, err)
	}
	return nil
}

func unfit(dir string, cause error) error {
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	m, err := Of(dir)
	kind := m.FSType
	if err != nil {
		kind = "a file system"
	}
	return &UnfitError{Dir: filepath.Dir(dir), FileSystem: kind, cause: errors.Join(cause, err)}
}

// Of returns the mount of the file system that a path is on. The path must be absolute and have no
// symbolic links.
func Of(path string) (mountinfo.Info, error) {
	above, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return mountinfo.Info{}, fmt.Errorf("listing the mounts of this process: %w", err)
	}
	var found mountinfo.Info
	for _, m := range above {
		if len(m.Mountpoint) >= len(found.Mountpoint) { // a later mount covers an earlier one
			found = *m
		}
	}
	if found.Mountpoint == "" {
		return found, fmt.Errorf("no mount of this process contains %s", path)
	}
	return found, nil
}
