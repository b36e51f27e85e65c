package oci

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/runner/spec"
)

// ownDevices are the names in /dev that each container has for itself: terminals, shared memory,
// message queues, and the devices that a runtime always creates.
var ownDevices = []string{
	"console", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero",
}

// devicesOf returns the node's devices for a privileged container, and none for other containers.
func devicesOf(s *rikv1alpha1.Security) ([]spec.Device, error) {
	if s == nil || !s.Privileged {
		return nil, nil
	}
	return Devices("/dev")
}

// Devices lists the device files in a directory and below. It leaves out files that disappear
// meanwhile, such as those of unplugged devices.
func Devices(dir string) ([]spec.Device, error) {
	var list []spec.Device
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case filepath.Dir(path) == dir && slices.Contains(ownDevices, entry.Name()):
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case entry.Type()&fs.ModeDevice == 0:
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return nil //nolint:nilerr // it went away
		}
		kind := "b"
		if entry.Type()&fs.ModeCharDevice != 0 {
			kind = "c"
		}
		list = append(list, spec.Device{
			Path: path, Type: kind, Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)),
			Mode: os.FileMode(st.Mode).Perm(), UID: st.Uid, GID: st.Gid,
		})
		return nil
	})
	return list, err
}
