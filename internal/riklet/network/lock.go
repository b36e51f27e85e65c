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
)

// lockDir has a lock for each network namespace that a node uses, whatever the node's own
// directories are: two nodes in one namespace would change each other's rules. It is a fixed
// place that only root can write to, and nodes in containers that share a network namespace
// must share it. An abstract unix socket, which also ends with its
// process, can be taken by every local user.
const lockDir = "/run/rik-network"

// netLock is a held lock of one network namespace.
type netLock struct {
	file *lockfile.Lock
	path string
}

// lock keeps a second node off the network namespace of the calling thread.
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
		case !time.Now().Before(deadline) || !sleep(ctx, lockInterval):
			return nil, fmt.Errorf("%w (it is %s)", ErrInUse, held.By)
		}
	}
}

// lockPath is the lock's file for the network namespace of the calling thread. Its directory
// is made if need be, and must be root's alone.
func lockPath(dir string) (string, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	var at unix.Stat_t
	if err := unix.Lstat(dir, &at); err != nil {
		return "", &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if at.Mode&unix.S_IFMT != unix.S_IFDIR || at.Uid != 0 || at.Mode&0o022 != 0 {
		return "", fmt.Errorf("%s is not a directory that only root can write to: remove it", dir)
	}
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &namespace); err != nil {
		return "", fmt.Errorf("finding out the network namespace: %w", err)
	}
	return filepath.Join(dir, "net-"+strconv.FormatUint(namespace.Ino, 10)), nil
}

// beside is the path of another file that belongs to the same network namespace.
func (l *netLock) beside(what string) string {
	return filepath.Join(filepath.Dir(l.path), what+strings.TrimPrefix(filepath.Base(l.path), "net"))
}

// release lets go of the lock, and leaves nothing behind where nobody else has one.
func (l *netLock) release() error {
	removed := os.Remove(l.path) // while it is held: who waits for it takes a new file
	err := errors.Join(removed, l.file.Release())
	_ = os.Remove(filepath.Dir(l.path)) // fails while others have locks
	return err
}
