// Package projected writes the files of a ConfigMap or Secret so that a process that reads them
// sees either all old files or all new files. The node uses it for containers, and the init of a
// microVM for the containers inside.
package projected

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// File is one file of a volume.
type File struct {
	// Path is relative to the volume and clean. It does not begin with "..".
	Path string
	// Mode has the permission bits.
	Mode fs.FileMode
	Data []byte
}

// current is the link to the directory with the present files. Kubernetes uses the same name.
const current = "..data"

// Publish makes a directory show exactly these files. It writes them to a new directory and then
// switches the link "..data" to it with one rename. The names in the volume are links through
// "..data". Publish creates the directory if it is missing.
func Publish(dir string, files []File) error {
	version := ".." + digest(files)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, _ := os.Readlink(filepath.Join(dir, current))
	if old == version {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, version), 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if err := write(filepath.Join(dir, version), f); err != nil {
			return err
		}
	}
	if err := swapLink(version, filepath.Join(dir, current)); err != nil {
		return err
	}
	if err := linkNames(dir, files); err != nil {
		return err
	}
	if old != "" && strings.HasPrefix(old, "..") && filepath.IsLocal(old) {
		return os.RemoveAll(filepath.Join(dir, old))
	}
	return nil
}

// digest identifies a list of files.
func digest(files []File) string {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %o %d\n", f.Path, f.Mode, len(f.Data))
		h.Write(f.Data)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func write(dir string, f File) error {
	if !filepath.IsLocal(f.Path) || filepath.Clean(f.Path) != f.Path || f.Path == "." || strings.HasPrefix(f.Path, "..") {
		return fmt.Errorf("the path %q does not stay inside the volume", f.Path)
	}
	path := filepath.Join(dir, f.Path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, f.Data, 0o600); err != nil {
		return err
	}
	return os.Chmod(path, f.Mode.Perm())
}

// linkNames creates the top-level names as links through "..data", and removes others.
func linkNames(dir string, files []File) error {
	wanted := map[string]bool{}
	for _, f := range files {
		top, _, _ := strings.Cut(f.Path, "/")
		wanted[top] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "..") && !wanted[e.Name()] {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	for top := range wanted {
		err = errors.Join(err, swapLink(filepath.Join(current, top), filepath.Join(dir, top)))
	}
	return err
}

// swapLink replaces a link atomically.
func swapLink(target, path string) error {
	next := filepath.Join(filepath.Dir(path), "..new-"+filepath.Base(path))
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, path)
}
