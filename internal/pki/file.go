package pki

import (
	"fmt"
	"os"
)

// RefuseExposed returns ErrExposed for a secret file that other users can read or change. It
// does not repair the mode, because another user may already have read the secret.
func RefuseExposed(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("checking the mode of a private key: %w", err)
	}
	if mode := info.Mode().Perm(); mode&others != 0 {
		return fmt.Errorf("%w: %s has mode %04o: run chmod 0600 %s, and replace the key if another user may have read it", ErrExposed, path, mode, path)
	}
	return nil
}

// others are the permissions of the group and of other users.
const others = 0o077

// PrivateDir removes the permissions of other users from a directory. It reports whether they
// could change its content before.
func PrivateDir(dir string) (wasOpen bool, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return false, fmt.Errorf("checking the mode of a directory: %w", err)
	}
	mode := info.Mode().Perm()
	if mode&others == 0 {
		return false, nil
	}
	if err := os.Chmod(dir, mode&^others); err != nil {
		return false, fmt.Errorf("%s has mode %04o and must be private: %w", dir, mode, err)
	}
	return mode&0o022 != 0, nil
}
