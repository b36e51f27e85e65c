package datastore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	// maxSocketPath is sun_path of unix(7), 108 bytes, minus the final NUL.
	maxSocketPath = 107
	// longestSocketName is the longest file name of a datastore's socket.
	longestSocketName = "client.sock"
)

// socketDir returns a directory that only this user can enter and whose path is short enough
// for sockets. It is in dir, or in the system's temporary directory if the path of dir is too
// long. The returned function removes the directory.
func socketDir(dir string) (string, func() error, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", nil, fmt.Errorf("resolving the datastore's directory: %w", err)
	}
	path := filepath.Join(abs, "run")
	if len(filepath.Join(path, longestSocketName)) > maxSocketPath {
		if path, err = os.MkdirTemp("", "rik-datastore-"); err != nil {
			return "", nil, fmt.Errorf("creating a directory for sockets: %w", err)
		}
		return path, func() error { return os.RemoveAll(path) }, nil
	}
	// Sockets of a killed predecessor are not in use, because the data directory is locked.
	if err := os.RemoveAll(path); err != nil {
		return "", nil, fmt.Errorf("removing old sockets: %w", err)
	}
	if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o700)); err != nil {
		return "", nil, fmt.Errorf("creating a directory for sockets: %w", err)
	}
	return path, func() error { return os.RemoveAll(path) }, nil
}
