package guestinit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
)

const (
	volumeDir      = runDir + "/volumes"
	containerDir   = scratchDir + "/containers"
	scratchVolumes = scratchDir + "/volumes"
)

func volumePath(name string) (string, error) {
	return filepath.Join(volumeDir, name), validName("volume", name)
}

// makeVolume creates a volume's directory where containers can mount it.
func makeVolume(v guest.Volume) error {
	dir, err := volumePath(v.Name)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	if v.Memory || v.Projected || len(v.Files) > 0 {
		options := "mode=0777"
		if v.SizeBytes > 0 {
			options += fmt.Sprintf(",size=%d", v.SizeBytes)
		}
		if v.Projected || len(v.Files) > 0 {
			options = "mode=0755"
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
			return fmt.Errorf("mounting a file system in memory: %w", err)
		}
		if v.Projected || len(v.Files) > 0 {
			return publish(dir, v.Files)
		}
		return nil
	}
	onDisk := filepath.Join(scratchVolumes, v.Name)
	switch err := os.Mkdir(onDisk, 0o777); {
	case errors.Is(err, fs.ErrExist): // of an earlier boot: its owner may have changed the mode
	case err != nil:
		return err
	default:
		if err := os.Chmod(onDisk, 0o777); err != nil {
			return err
		}
	}
	return unix.Mount(onDisk, dir, "", unix.MS_BIND, "")
}

// publish makes a directory show exactly these files, atomically. It writes them to a new
// directory and switches to it by renaming the link "..data", like Kubernetes does, and like the
// node does for containers.
func publish(dir string, files []guest.File) error {
	version := ".." + digest(files)
	old, _ := os.Readlink(filepath.Join(dir, "..data"))
	if old == version {
		return nil
	}
	for _, f := range files {
		if err := writeInto(filepath.Join(dir, version), f); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, version), 0o755); err != nil {
		return err
	}
	if err := swapLink(version, filepath.Join(dir, "..data")); err != nil {
		return err
	}
	if err := linkNames(dir, files); err != nil {
		return err
	}
	if old != "" && filepath.IsLocal(old) && strings.HasPrefix(old, "..") {
		return os.RemoveAll(filepath.Join(dir, old))
	}
	return nil
}

func digest(files []guest.File) string {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %o %d\n", f.Path, f.Mode, len(f.Data))
		h.Write(f.Data)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

func writeInto(dir string, f guest.File) error {
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
	return os.Chmod(path, fs.FileMode(f.Mode)&fs.ModePerm)
}

// linkNames creates the top-level names as links through "..data", and removes others.
func linkNames(dir string, files []guest.File) error {
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
		err = errors.Join(err, swapLink(filepath.Join("..data", top), filepath.Join(dir, top)))
	}
	return err
}

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
