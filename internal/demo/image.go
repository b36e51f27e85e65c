package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"rik.dev/rik/internal/executable"
	"rik.dev/rik/internal/install/layout"
	"rik.dev/rik/internal/ociimage"
)

// tag is the image's tag in its layout.
const tag = "v1"

// imageDir is the directory of the image, an OCI layout.
func (d *Demo) imageDir() string { return filepath.Join(d.ImageDir, layout.DemoImage) }

// writeImage writes the image, unless it is there, and returns its reference. A node may read the
// image at the same time, so a different image replaces it as a whole.
func (d *Demo) writeImage() (string, error) {
	if err := executable.Check(d.Program); err != nil {
		return "", fmt.Errorf("the sample program %s: %w: it is part of the package riklet and of the archive, and \"make build\" builds it", d.Program, err)
	}
	dir, err := filepath.Abs(d.imageDir())
	if err != nil {
		return "", fmt.Errorf("--image-dir %q: %w", d.ImageDir, err)
	}
	changed, err := d.replaceImage(dir)
	if err != nil {
		return "", fmt.Errorf("writing the image of the sample: %w: choose another directory with --image-dir", err)
	}
	if changed {
		d.say("wrote the image %s", dir)
	}
	return "oci:" + dir + ":" + tag, nil
}

func (d *Demo) replaceImage(dir string) (changed bool, err error) {
	if err := os.MkdirAll(d.ImageDir, 0o755); err != nil {
		return false, err
	}
	next, err := os.MkdirTemp(d.ImageDir, "."+layout.DemoImage+"-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(next)) }()
	spec, err := ociimage.ProgramSpec(d.Program, false)
	if err != nil {
		return false, err
	}
	if _, err := ociimage.Write(next, tag, spec); err != nil {
		return false, err
	}
	if same, err := sameTree(next, dir); err != nil || same {
		return false, err
	}
	return true, errors.Join(os.Chmod(next, 0o755), os.RemoveAll(dir), os.Rename(next, dir))
}

// sameTree reports whether all files of a directory are in another one, with the same content.
func sameTree(dir, other string) (bool, error) {
	same, root := true, os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !same {
			return err
		}
		want, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		got, err := os.ReadFile(filepath.Join(other, name))
		same = err == nil && bytes.Equal(got, want)
		return nil
	})
	return same, err
}
