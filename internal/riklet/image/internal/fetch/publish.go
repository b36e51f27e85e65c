package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// publish completes the staged layers and renames them into the store, after it has synced their
// content. A layer in the store is complete, also after a power failure.
func publish(layersDir string, layers []*staged) error {
	fresh := false
	for i, s := range layers {
		if s.reused {
			continue
		}
		fresh = true
		if err := inherit(s, layers[:i]); err != nil {
			return err
		}
		data, err := json.Marshal(s.stored)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.dir, wire.StoredFile), data, 0o600); err != nil {
			return err
		}
	}
	if !fresh {
		return nil
	}
	dir, err := os.Open(layersDir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	// Sync the file system with one call instead of one call per file.
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("writing to the disk: %w", err)
	}
	for _, s := range layers {
		if s.reused {
			continue
		}
		// The pull of another image may have stored the same layer in the meantime.
		err := os.Rename(s.dir, s.final)
		if err != nil && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
			return err
		}
	}
	return dir.Sync()
}

// inherit sets owner and mode of directories that a layer's archive implies but does not list,
// to those in the layers below. In an overlay the topmost directory counts, and an archive with
// only /etc/passwd is not meant to change /etc.
func inherit(s *staged, below []*staged) error {
	if len(s.Implicit) == 0 {
		return nil
	}
	root, err := os.OpenRoot(filepath.Join(s.dir, wire.ContentDir))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	lower := make([]*os.Root, 0, len(below))
	defer func() {
		for _, l := range lower {
			_ = l.Close()
		}
	}()
	for _, b := range below {
		l, err := os.OpenRoot(filepath.Join(b.dir, wire.ContentDir))
		if err != nil {
			return err
		}
		lower = append(lower, l)
	}
	for _, dir := range s.Implicit {
		if err := inheritOne(root, lower, dir); err != nil {
			return fmt.Errorf("directory %q: %w", dir, err)
		}
	}
	return nil
}

func inheritOne(root *os.Root, lower []*os.Root, dir string) error {
	fi, err := root.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && !fi.IsDir()) {
		return nil // a later entry replaced it
	}
	if err != nil {
		return err
	}
	mode, uid, gid := fs.FileMode(0o755), 0, 0
	for i := len(lower) - 1; i >= 0; i-- {
		// os.Root does not leave the layer, even through links in it.
		below, err := lower[i].Lstat(dir)
		if err != nil {
			continue
		}
		if st, ok := below.Sys().(*syscall.Stat_t); ok && below.IsDir() {
			mode, uid, gid = below.Mode(), int(st.Uid), int(st.Gid)
		}
		break
	}
	if os.Geteuid() == 0 {
		if err := root.Lchown(dir, uid, gid); err != nil {
			return err
		}
	}
	return root.Chmod(dir, mode)
}
