// Package mounts finds and unmounts what is mounted below a node's directories, and mounts the
// directory that must not be on a disk in memory.
//
// Removing a directory in which something is still mounted removes the mounted files, for example
// those of a path of the node. So code that removes a directory uses this package first.
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

// Below returns the mount points at a directory and below it, the innermost first. It returns the
// kernel's paths: dir may contain symbolic links, the results do not. If the directory does not
// exist, the result is empty.
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

// Unmount unmounts everything at a path. It does not follow the path if it is a symbolic link. A
// path without a mount is no error. A mount that a process still uses is detached at once, and
// unmounted when the process releases it. A process that was just forked may be such a user.
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

// UnmountBelow unmounts everything that Below returns, and continues after an error.
func UnmountBelow(dir string) error {
	paths, err := Below(dir)
	errs := []error{err}
	for _, path := range paths {
		errs = append(errs, Unmount(path))
	}
	return errors.Join(errs...)
}

// UnmountInside is UnmountBelow without the mounts at the directory itself.
func UnmountInside(dir string) error {
	resolved, paths, err := inside(dir)
	if resolved == "" {
		return err
	}
	errs := []error{err}
	for _, path := range paths {
		errs = append(errs, Unmount(path))
	}
	return errors.Join(errs...)
}

// inside returns the mount points below a directory, without the directory itself. It also returns
// the kernel's path of the directory, which is "" if the directory does not exist.
func inside(dir string) (resolved string, paths []string, err error) {
	resolved, err = filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	paths, err = Below(resolved)
	return resolved, slices.DeleteFunc(paths, func(path string) bool { return path == resolved }), err
}

// RemoveAll removes a directory with its content. If something is mounted at the directory or below
// it, RemoveAll removes nothing and returns an error.
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

// UnmountAndRemove unmounts everything at a directory and below it, and then removes the directory
// with its content. A missing directory is no error.
func UnmountAndRemove(dir string) error {
	if err := UnmountBelow(dir); err != nil {
		return err
	}
	return RemoveAll(dir)
}

// Limits are the limits of a file system in memory.
type Limits struct {
	Bytes, Inodes int64
}

func (l Limits) options() string {
	return fmt.Sprintf("mode=0700,size=%d,nr_inodes=%d", l.Bytes, l.Inodes)
}

// The run directory may use a share of the machine's memory, and at least what a few instances
// need. The files that instances write are in separate file systems below it.
const (
	runShare     = 10
	minRunSize   = 64 << 20
	bytesAnInode = 1 << 10
)

// RunLimits returns the limits of a node's run directory.
func RunLimits() Limits {
	size := int64(minRunSize)
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		size = max(size, int64(info.Totalram)*int64(info.Unit)/runShare)
	}
	return Limits{Bytes: size, Inodes: size / bytesAnInode}
}

// InMemory makes a directory a separate file system in memory with the given limits, for its owner
// only. It reports whether it mounted one now.
//
// A tmpfs with a limit that is already mounted at the directory is used as it is. A tmpfs without a
// limit gets a new mount over it, because the kernel does not add a limit later. So does a
// directory that is part of a larger tmpfs, such as a host's /run. If such a directory is in use, a
// mount would hide its files. Then it stays as it is, without a limit.
func InMemory(dir string, limits Limits, occupied func() bool) (mounted bool, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	inMemory, bounded, err := memory(dir)
	if err != nil {
		return false, err
	}
	if bounded || inMemory && occupied() {
		return false, os.Chmod(dir, 0o700)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, limits.options()); err != nil {
		return false, &os.PathError{Op: "mount tmpfs", Path: dir, Err: err}
	}
	return true, nil
}

// Bounded reports whether a directory is a separate tmpfs with a limit, as InMemory mounts it.
func Bounded(dir string) (bool, error) {
	_, bounded, err := memory(dir)
	return bounded, err
}

// memory reports whether a directory lies in a tmpfs, and whether it is the root of one with a
// limit.
func memory(dir string) (inMemory, bounded bool, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, false, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if inMemory = st.Type == unix.TMPFS_MAGIC; !inMemory {
		return false, false, nil
	}
	own, err := mountinfo.Mounted(dir)
	return true, own && st.Blocks > 0, err
}

// Clear removes the content of a directory. It also removes the directory, unless that is a
// symbolic link or a mount point, which an administrator created. If something is mounted below the
// directory, Clear removes nothing and returns an error.
func Clear(dir string) error {
	resolved, below, err := inside(dir)
	if err != nil || resolved == "" {
		return err
	}
	if len(below) > 0 {
		return mountedError(dir, below)
	}
	mounted, err := mountinfo.Mounted(resolved)
	if err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !mounted && info.Mode().Type() != fs.ModeSymlink {
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
	return fmt.Errorf("%s is still mounted, so nothing below %s was removed", strings.Join(paths, ", "), dir)
}
