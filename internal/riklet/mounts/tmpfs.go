package mounts

import (
	"os"
	"strconv"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Tmpfs mounts a tmpfs at a path, unless something is already mounted there. mode is an option such
// as mode=0700. bytes is its size; 0 means the kernel's default.
func Tmpfs(path, mode string, bytes int64, flags uintptr) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	if mounted, err := mountinfo.Mounted(path); mounted || err != nil {
		return err
	}
	options := mode
	if bytes > 0 {
		options += ",size=" + strconv.FormatInt(bytes, 10)
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|flags, options); err != nil {
		return &os.PathError{Op: "mount tmpfs", Path: path, Err: err}
	}
	return nil
}
