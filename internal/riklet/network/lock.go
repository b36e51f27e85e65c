package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/lockfile"
	"rik.dev/rik/internal/pause"
)

// lockDir contains a lock for each network namespace that a node uses. The lock does not depend
// on the node's own directories, because two nodes in one namespace would change each other's
// rules. The directory has a fixed path that only root can write to. Nodes in containers that
// share a network namespace must share it. An abstract unix socket, which also disappears with
// its process, is no alternative: every local user can bind one.
const lockDir = "/run/rik-network"

// netLock is a held lock of one network namespace.
type netLock struct {
	file *lockfile.Lock
	path string
}

// lock locks the network namespace of the calling thread against other nodes.
func lock(ctx context.Context) (*netLock, error) {
	deadline := time.Now().Add(lockTimeout)
	for {
		path, err := lockPath(lockDir)
		if err != nil {
			return nil, fmt.Errorf("locking the network: %w", err)
		}
		file, err := lockfile.Take(path)
		var held *lockfile.HeldError
		switch {
		case err == nil:
			return &netLock{file, path}, nil
		case errors.Is(err, fs.ErrNotExist) && time.Now().Before(deadline):
			continue // another node has just removed the directory
		case !errors.As(err, &held):
			return nil, fmt.Errorf("locking the network: %w", err)
		case !time.Now().Before(deadline) || !pause.For(ctx, lockInterval):
			return nil, fmt.Errorf("%w (it is %s)", ErrInUse, held.By)
		}
	}
}

// lockPath returns the lock file for the network namespace of the calling thread. It creates the
// directory if necessary. Only root may have access to the directory.
func lockPath(dir string) (string, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	var at unix.Stat_t
	if err := unix.Lstat(dir, &at); err != nil {
		return "", &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if at.Mode&unix.S_IFMT != unix.S_IFDIR || at.Uid != 0 || at.Mode&0o022 != 0 {
		return "", fmt.Errorf("%s is not a directory that only root can write to; remove it", dir)
	}
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &namespace); err != nil {
		return "", fmt.Errorf("reading the network namespace: %w", err)
	}
	return filepath.Join(dir, "net-"+strconv.FormatUint(namespace.Ino, 10)), nil
}

// siblingPath returns the path of another file for the same network namespace.
func (l *netLock) siblingPath(what string) string {
	return filepath.Join(filepath.Dir(l.path), what+strings.TrimPrefix(filepath.Base(l.path), "net"))
}

// release releases the lock. It removes the directory if it contains no other lock.
func (l *netLock) release() error {
	removed := os.Remove(l.path) // while it is held: a waiting node creates a new file
	err := errors.Join(removed, l.file.Release())
	_ = os.Remove(filepath.Dir(l.path)) // fails if other locks exist
	return err
}
