package pki

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// WriteFile replaces path by a file with the content and mode 0600. A reader sees either the old
// or the new file, also after a crash.
func WriteFile(path string, content []byte) error {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("creating a file beside %s: %w", path, err)
	}
	if err := fill(tmp, content); err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", tmp.Name(), err), os.Remove(tmp.Name()))
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return errors.Join(fmt.Errorf("moving %s into place: %w", path, err), os.Remove(tmp.Name()))
	}
	return syncDir(dir)
}

// fill does not set the mode, because os.CreateTemp created the file with 0600.
func fill(f *os.File, content []byte) error {
	_, err := f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes a rename survive a power failure.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("opening %s to sync it: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	return nil
}

// RefuseExposed returns ErrExposed for a secret file that other users can read or change. It
// does not repair the mode, because another user may already have read the secret.
func RefuseExposed(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("checking the mode of a private key: %w", err)
	}
	if mode := info.Mode().Perm(); mode&others != 0 {
		return fmt.Errorf("%w: %s has mode %04o: run chmod 0600 %s, and replace the key if anyone may have read it", ErrExposed, path, mode, path)
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
