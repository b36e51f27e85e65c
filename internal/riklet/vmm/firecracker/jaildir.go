package firecracker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// JailDir returns the directory of a node's jails: the given one, or by default one in the state
// directory. That is on the same disk as the disks of the machines. Unlike in the run directory,
// devices and programs work there.
func JailDir(given, stateDir string) string {
	if given != "" {
		return given
	}
	return filepath.Join(stateDir, jailsDir)
}

// MakeJailDir creates the directory of jails, accessible to root only. An existing directory belongs
// to the administrator and keeps its mode.
func MakeJailDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the directory of Firecracker's jails (--jail-dir): %w", err)
	}
	return nil
}

// RemoveJailDir removes the directory of jails if it is empty.
func RemoveJailDir(dir string) error {
	for _, dir := range []string{filepath.Join(dir, execName), dir} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return nil
}
