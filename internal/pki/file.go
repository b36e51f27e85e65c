package pki

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// WriteFile replaces path with content and mode 0600 so that a reader, or a
// crash at any moment, sees the old file or the new one and nothing between.
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

// fill leaves the mode alone: os.CreateTemp made the file 0600.
func fill(f *os.File, content []byte) error {
	_, err := f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes a rename survive a power cut.
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
