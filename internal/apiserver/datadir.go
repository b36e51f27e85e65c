package apiserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/pki"
)

// ErrLocked says that another server runs on the data directory.
var ErrLocked = errors.New("data directory is in use")

// ErrProfile says that the data directory belongs to a server of another profile.
var ErrProfile = errors.New("data directory was made with another profile")

// lockDataDir creates dir and locks it for the life of the process, or until
// the returned function is called. The lock is the kernel's: a killed server
// leaves a file behind, but no lock.
func lockDataDir(dir string) (func() error, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the data directory: %w", err)
	}
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of the data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w: a server with process id %s runs on %s: stop it, or choose another data directory", ErrLocked, holder(path), dir)
		} else {
			err = fmt.Errorf("locking %s: %w", path, err)
		}
		return nil, errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Truncate(0), writeString(f, strconv.Itoa(os.Getpid()))); err != nil {
		return nil, errors.Join(fmt.Errorf("writing the lock of the data directory: %w", err), f.Close())
	}
	// Closing releases the lock; the file stays, as removing it would let two
	// processes lock two files of one name.
	return f.Close, nil
}

func writeString(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func holder(path string) string {
	content, err := os.ReadFile(path)
	if err != nil || len(content) == 0 {
		return "unknown"
	}
	return strings.TrimSpace(string(content))
}

// fixProfile records the profile at first start and holds later ones to it: the
// two profiles serve different types over the same keys.
func fixProfile(dir string, profile Profile) error {
	path := filepath.Join(dir, "profile")
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return pki.WriteFile(path, []byte(profile+"\n"))
	}
	if err != nil {
		return fmt.Errorf("reading the profile: %w", err)
	}
	if first := Profile(strings.TrimSpace(string(content))); first != profile {
		return fmt.Errorf("%w: %s is %q, not %q", ErrProfile, dir, first, profile)
	}
	return nil
}
