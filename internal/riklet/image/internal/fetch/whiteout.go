package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	"rik.dev/rik/internal/riklet/image/internal/layer"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// settleWhiteouts checks the whiteouts of the new layers once all layers below them are
// complete. It refuses a whiteout whose path leads through a symbolic link of a lower layer. It
// removes a whiteout in a directory that no lower layer has, because it hides nothing: overlayfs
// omits whiteouts only from listings of directories that it merges from several layers. In other
// directories they would be names that are listed but cannot be opened.
// https://docs.kernel.org/filesystems/overlayfs.html#whiteouts-and-opaque-directories
func (p *puller) settleWhiteouts(ctx context.Context, layers []*staged) error {
	for i, s := range layers {
		if s.reused {
			continue // it was settled when it was stored, on top of the same layers
		}
		below := newMerged(layers[:i])
		for _, dir := range slices.Sorted(maps.Keys(s.Whiteouts)) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := s.settle(below, dir); err != nil {
				return p.layerError(i, layer.Classify(fmt.Errorf("entry %q: %w", s.Whiteouts[dir], err)))
			}
		}
	}
	return nil
}

// settle handles the whiteouts of one directory.
func (s *staged) settle(below *merged, dir string) error {
	for at := dir; at != "."; at = path.Dir(at) {
		found, err := below.look(at)
		if err != nil {
			return err
		}
		if !found.link {
			continue
		}
		// A directory that this layer lists replaces the link.
		if _, implicit := slices.BinarySearch(s.Implicit, at); implicit {
			return fmt.Errorf("%w: the whiteout leads through the symbolic link %q of a layer below", wire.ErrRefused, at)
		}
	}
	found, err := below.look(dir)
	if err != nil || len(found.dirs) > 0 {
		return err
	}
	return dropWhiteouts(filepath.Join(s.dir, wire.ContentDir), dir)
}

// dropWhiteouts removes the whiteouts from one directory of a layer. Every character device in a
// layer is a whiteout.
func dropWhiteouts(layerDir, dir string) error {
	root, err := os.OpenRoot(layerDir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	d, err := root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a later entry removed it
	}
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	entries, err := d.ReadDir(-1)
	if errors.Is(err, syscall.ENOTDIR) {
		return nil // or replaced it
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeCharDevice == 0 {
			continue
		}
		if err := root.Remove(path.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// merged looks up directories in an overlay of layers.
type merged struct {
	layers []string // highest first
	known  map[string]object
}

// object is the result of a lookup. It has the directories of these layers, by index, that are
// merged into one; or it is a symbolic link. Otherwise it is another file, or does not exist.
type object struct {
	dirs []int
	link bool
}

func newMerged(layers []*staged) *merged {
	m := &merged{known: map[string]object{}}
	root := object{}
	for _, l := range slices.Backward(layers) {
		root.dirs = append(root.dirs, len(m.layers))
		m.layers = append(m.layers, filepath.Join(l.dir, wire.ContentDir))
		if wire.Opaque(m.layers[len(m.layers)-1]) {
			break
		}
	}
	m.known["."] = root
	return m
}

// look follows no links. It looks up names only in directories that it has found.
func (m *merged) look(name string) (object, error) {
	if o, ok := m.known[name]; ok {
		return o, nil
	}
	parent, err := m.look(path.Dir(name))
	if err != nil {
		return object{}, err
	}
	var found object
	for _, i := range parent.dirs {
		at := filepath.Join(m.layers[i], name)
		info, err := os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return object{}, err
		}
		if !info.IsDir() {
			found.link = len(found.dirs) == 0 && info.Mode()&fs.ModeSymlink != 0
			break
		}
		found.dirs = append(found.dirs, i)
		if wire.Opaque(at) {
			break
		}
	}
	m.known[name] = found
	return found, nil
}
