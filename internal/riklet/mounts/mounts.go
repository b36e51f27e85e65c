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

// UnmountInside is UnmountBelow, but for what is mounted at the directory itself.
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

// inside lists what is mounted in a directory and not at it. The directory is given as the
// kernel has it; "" when there is none.
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

// Limits bound a file system in memory.
type Limits struct {
	Bytes, Inodes int64
}

func (l Limits) options() string {
	return fmt.Sprintf("mode=0700,size=%d,nr_inodes=%d", l.Bytes, l.Inodes)
}

// What the run directory may take of the machine's memory: a share of it, and at least what a
// few instances need. What instances fill has file systems of their own in it.
const (
	runShare     = 10
	minRunSize   = 64 << 20
	bytesAnInode = 1 << 10
)

// RunLimits bound the run directory of a node.
func RunLimits() Limits {
	size := int64(minRunSize)
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		size = max(size, int64(info.Totalram)*int64(info.Unit)/runShare) //nolint:gosec // a machine's memory
	}
	return Limits{Bytes: size, Inodes: size / bytesAnInode}
}

// InMemory makes a directory, for its owner only, a file system of its own in memory with the
// given limits. It tells whether it mounted one now.
//
// A tmpfs with a limit that is mounted at the directory already is used as it is. One without a
// limit, which the kernel gives none afterward, and a directory that is only a part of a larger
// tmpfs, such as a host's /run, are mounted over, unless they are occupied: a mount would hide
// what is in use. They stay as they are then, and are not bounded.
func InMemory(dir string, limits Limits, occupied func() bool) (mounted bool, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	inMemory, bounded, err := memory(dir)
	if err != nil {
		return false, err
	}
	if bounded || inMemory && occupied() {
		return false, os.Chmod(dir, 0o700) //nolint:gosec // a directory needs x
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, limits.options()); err != nil {
		return false, &os.PathError{Op: "mount tmpfs", Path: dir, Err: err}
	}
	return true, nil
}

// Bounded tells whether a directory is a tmpfs of its own with a limit, as InMemory makes one.
func Bounded(dir string) (bool, error) {
	_, bounded, err := memory(dir)
	return bounded, err
}

// memory tells whether a directory lies in a tmpfs, and whether it is the root of one with a
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

// Clear removes all that is in a directory, and the directory too unless it is a symbolic
// link or a mount point: an administrator made that, and it stays. It refuses, before
// anything goes, while something is mounted below.
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
