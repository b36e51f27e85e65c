package apiserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/lockfile"
)

// ErrLocked means that another server runs on the data directory.
var ErrLocked = errors.New("data directory is in use")

// ErrExposed means that every user of the machine may replace files in the data directory.
var ErrExposed = errors.New("data directory is writable for other users")

// ErrProfile means that the data directory belongs to a server of another profile.
var ErrProfile = errors.New("data directory was created with another profile")

// lockDataDir creates dir and locks it for the life of the process, or until the returned
// function is called.
func lockDataDir(dir string) (func() error, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the data directory: %w", err)
	}
	// In a directory with the sticky bit, such as /tmp, other users cannot replace the server's
	// files.
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return nil, fmt.Errorf("%w: %s has mode %04o, so other users of this machine can replace the cluster's keys: run chmod go-w %s, and check the owner of the files in it", ErrExposed, dir, info.Mode().Perm(), dir)
	}
	lock, err := lockfile.Take(filepath.Join(dir, "lock"))
	var held *lockfile.HeldError
	if errors.As(err, &held) {
		return nil, fmt.Errorf("%w: %s uses %s: stop that process, or choose another data directory", ErrLocked, held.By, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("locking the data directory: %w", err)
	}
	return lock.Release, nil
}

// profileFile has the profile of the first start.
const profileFile = "profile"

// fixProfile records the profile at the first start, and refuses another profile at later ones.
// The two profiles serve different types with the same keys.
func fixProfile(dir string, profile Profile) error {
	path := filepath.Join(dir, profileFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return atomicfile.Write(path, []byte(profile+"\n"))
	}
	if err != nil {
		return fmt.Errorf("reading the profile: %w", err)
	}
	if first := Profile(strings.TrimSpace(string(content))); first != profile {
		return fmt.Errorf("%w: %s is %q, not %q", ErrProfile, dir, first, profile)
	}
	return nil
}
