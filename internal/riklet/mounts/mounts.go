// Package mounts finds and takes away what a node has mounted below its directories, and
// mounts memory over the one that must not be on a disk.
// Deleting a directory in which something is still mounted empties what is behind it, a
// path of the node among others, so whoever deletes asks here first.
package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Below lists what is mounted at a directory and under it, the innermost first, by the
// paths that the kernel has for it: dir may be reached by symbolic links, they are not.
// Nothing is mounted where there is no directory.
func Below(dir string) ([]string, error) {
	resolved, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(resolved))
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	var paths []string
	for _, i := range infos {
		paths = append(paths, i.Mountpoint)
	}
	slices.SortStableFunc(paths, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	return slices.Compact(paths), nil
}

// Unmount takes away all that is mounted at a path, which is not followed if it is a
// symbolic link; none there is no error. What somebody has open, a process that was just
// forked among others, goes out of sight at once, and off when that is closed.
func Unmount(path string) error {
	flags := unix.UMOUNT_NOFOLLOW
	for {
		err := unix.Unmount(path, flags)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, fs.ErrNotExist):
			return nil
		case errors.Is(err, unix.EBUSY) && flags&unix.MNT_DETACH == 0:
			flags |= unix.MNT_DETACH
		case err != nil:
			return &os.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
}

// UnmountBelow takes away all that Below lists, and goes on when one of them cannot be.
func UnmountBelow(dir string) error {
	paths, err := Below(dir)
	errs := []error{err}
	for _, path := range paths {
		errs = append(errs, Unmount(path))
	}
	return errors.Join(errs...)
}

// RemoveAll removes a directory with all that is in it, and refuses, before anything
// goes, while something is mounted at it or below.
func RemoveAll(dir string) error {
	paths, err := Below(dir)
	if err != nil {
		return err
	}
	if len(paths) > 0 {
		return mountedError(dir, paths)
	}
	return os.RemoveAll(dir)
}

// UnmountAndRemove takes away all that is mounted at a directory and below, and then the
// directory with all that is in it. None there is no error.
func UnmountAndRemove(dir string) error {
	if err := UnmountBelow(dir); err != nil {
		return err
	}
	return RemoveAll(dir)
}

// InMemory makes a directory, for its owner only, whose files are not on a disk: memory is
// mounted over one that is.
func InMemory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Type == unix.TMPFS_MAGIC {
		return os.Chmod(dir, 0o700) //nolint:gosec // a directory needs x
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
		return &os.PathError{Op: "mount tmpfs", Path: dir, Err: err}
	}
	return nil
}

// Clear removes all that is in a directory, and the directory too unless it is a symbolic
// link or a mount point: an administrator made that, and it stays. It refuses, before
// anything goes, while something is mounted below.
func Clear(dir string) error {
	resolved, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	paths, err := Below(resolved)
	if err != nil {
		return err
	}
	below := slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return path == resolved })
	if len(below) > 0 {
		return mountedError(dir, below)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if len(paths) == 0 && info.Mode().Type() != fs.ModeSymlink {
		return os.RemoveAll(dir)
	}
	entries, err := os.ReadDir(resolved)
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(resolved, e.Name())))
	}
	return errors.Join(errs...)
}

func mountedError(dir string, paths []string) error {
	return fmt.Errorf("%s is still mounted: nothing below %s was removed", strings.Join(paths, ", "), dir)
}
