// Package atomicfile replaces files in one step. A reader sees either the old or the new content,
// also if the process dies. A file gets the mode 0600, unless Copy gives it another one.
package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path. When it returns nil, the new content is on the disk, and a
// power failure does not lose it.
func Write(path string, content []byte) error {
	return Copy(path, bytes.NewReader(content), 0o600)
}

// Copy is like Write, and takes the content from a reader, and the mode of the file. A program that
// runs from the file at path continues with the old content.
func Copy(path string, content io.Reader, mode fs.FileMode) error {
	finish := func(f *os.File) error { return errors.Join(f.Chmod(mode), f.Sync()) }
	if err := replace(path, content, finish); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteUnsynced replaces the file at path without waiting for the disk. A power failure may lose
// or truncate the new content. It is for content that saves work but can be made again.
func WriteUnsynced(path string, content []byte) error {
	return replace(path, bytes.NewReader(content), func(*os.File) error { return nil })
}

// replace writes the content to a file in the same directory, and renames that file. The file of
// a process that died in between has a name that begins with a dot.
func replace(path string, content io.Reader, finish func(*os.File) error) error {
	// The mode is that of os.CreateTemp.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("creating a file next to %s: %w", path, err)
	}
	_, err = io.Copy(f, content)
	if err == nil {
		err = finish(f)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", f.Name(), err), os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return errors.Join(fmt.Errorf("moving %s into place: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

// SyncDir waits until the names in a directory are on the disk, such as those of files that were
// created, renamed or removed.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("opening %s to sync it: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	return nil
}
