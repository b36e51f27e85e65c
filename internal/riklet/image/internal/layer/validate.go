package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// action is what to do with an accepted entry.
type action int

const (
	unpack       action = iota
	unpackOpaque        // a directory in place of one that the layer hides
	ignore              // archive metadata, not a file
	skipDevice          // a device node: images contain them, containers get their own
)

// Whiteouts of the OCI image specification: ".wh.name" hides name in the lower layers,
// ".wh..wh..opq" hides everything in its directory. Docker's aufs left other names with the
// prefix ".wh..wh." behind, which have no meaning.
const (
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."
	whiteoutOpaque = ".wh..wh..opq"
)

// validator refuses entries. It stores, by path in the layer, what earlier entries have created
// as far as later entries depend on it.
type validator struct {
	root string
	// plain archives have no whiteouts, because there are no lower layers.
	plain    bool
	symlinks map[string]bool
	devices  map[string]bool   // skipped ones
	listed   map[string]bool   // directories that the archive lists
	implied  map[string]bool   // directories created for their children
	hidden   map[string]string // directories with whiteouts: the first of them
	removed  map[string]bool   // paths that single whiteouts hide
}

func newValidator(root string) *validator {
	return &validator{
		root:     root,
		symlinks: map[string]bool{},
		devices:  map[string]bool{},
		listed:   map[string]bool{},
		implied:  map[string]bool{},
		hidden:   map[string]string{},
		removed:  map[string]bool{},
	}
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", wire.ErrRefused, fmt.Errorf(format, args...))
}

// check decides on one entry and stores it for later entries.
func (v *validator) check(hdr *tar.Header) (action, error) {
	if hdr.Typeflag == tar.TypeXGlobalHeader { // "git archive" writes one
		return ignore, nil
	}
	name, err := v.path(hdr.Name)
	if err != nil {
		return 0, err
	}
	if name == "." {
		if hdr.Typeflag != tar.TypeDir {
			return 0, refuse("the root of the layer is not a directory")
		}
		return unpack, checkOwner(hdr)
	}
	if base := path.Base(name); strings.HasPrefix(base, whiteoutPrefix) {
		return v.whiteout(name, base)
	}
	if err := checkOwner(hdr); err != nil {
		return 0, err
	}
	return v.file(hdr, name)
}

// path cleans the name of an entry, or the target of a hard link. A leading slash means the
// layer's root, as in every unpacker. A path with ".." is refused even if it would stay inside,
// because no image builder writes one.
func (v *validator) path(name string) (string, error) {
	if name == "" || strings.ContainsRune(name, 0) {
		return "", refuse("the path is empty or has a NUL in it")
	}
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", refuse(`the path %q has ".." in it`, shorten(name))
	}
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if name == "" {
		return ".", nil
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if v.symlinks[dir] {
			return "", refuse("the path leads through the symbolic link %q of the same layer", shorten(dir))
		}
	}
	return name, nil
}

func (v *validator) whiteout(name, base string) (action, error) {
	if strings.HasPrefix(base, whiteoutMeta) && base != whiteoutOpaque {
		return ignore, nil
	}
	hidden := strings.TrimPrefix(base, whiteoutPrefix)
	if hidden == "" || hidden == "." || hidden == ".." {
		return 0, refuse("the whiteout names no file")
	}
	if v.plain {
		return 0, refuse("the name begins with %q, which only layers of images have", whiteoutPrefix)
	}
	v.parents(name)
	if dir := path.Dir(name); v.hidden[dir] == "" {
		v.hidden[dir] = name
	}
	if base != whiteoutOpaque {
		gone := path.Join(path.Dir(name), hidden)
		v.forget(gone)
		v.removed[gone] = true
	}
	return unpack, nil
}

func (v *validator) file(hdr *tar.Header, name string) (action, error) {
	switch hdr.Typeflag {
	case tar.TypeReg, '\x00', tar.TypeDir, tar.TypeSymlink, tar.TypeFifo:
	case tar.TypeLink:
		if skip, err := v.hardLink(hdr); err != nil || skip {
			return ignore, err
		}
	case tar.TypeChar, tar.TypeBlock:
		if hdr.Devmajor == 0 && hdr.Devminor == 0 {
			return 0, refuse("a device 0:0 forges a whiteout")
		}
		v.devices[name] = true
		return skipDevice, nil
	default:
		return 0, refuse("entries of type %q are not supported", hdr.Typeflag)
	}
	v.forget(name)
	v.parents(name)
	switch hdr.Typeflag {
	case tar.TypeSymlink:
		v.symlinks[name] = true
	case tar.TypeDir:
		v.listed[name] = true
		if v.removed[name] {
			return unpackOpaque, nil
		}
	}
	return unpack, nil
}

// hardLink refuses a link to anything but a file of this layer. skip means that its target was
// skipped, so the link must be too.
func (v *validator) hardLink(hdr *tar.Header) (skip bool, err error) {
	target, err := v.path(hdr.Linkname)
	if err != nil {
		return false, fmt.Errorf("hard link: %w", err)
	}
	if v.devices[target] {
		return true, nil
	}
	// No component of the path is a symbolic link: v.path has checked that, and the directory
	// was empty before this layer.
	fi, err := os.Lstat(filepath.Join(v.root, target))
	if errors.Is(err, fs.ErrNotExist) {
		return false, refuse("hard link to %q, which is not in this layer", shorten(hdr.Linkname))
	}
	if err != nil {
		return false, err
	}
	if fi.IsDir() || fi.Mode()&fs.ModeDevice != 0 {
		return false, refuse("hard link to %q, which is not a file", shorten(hdr.Linkname))
	}
	return false, nil
}

// forget removes the state of an earlier entry with the same path.
func (v *validator) forget(name string) {
	delete(v.symlinks, name)
	delete(v.devices, name)
	delete(v.listed, name)
}

func (v *validator) parents(name string) {
	for dir := path.Dir(name); dir != "." && !v.implied[dir]; dir = path.Dir(dir) {
		v.implied[dir] = true
	}
}

// implicit returns the directories that the archive does not list, sorted.
func (v *validator) implicit() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(v.implied)), func(dir string) bool { return v.listed[dir] })
}

// hiding returns the directories with whiteouts, except those that a later entry has replaced by
// a symbolic link, or whose parent it has replaced.
func (v *validator) hiding() map[string]string {
	maps.DeleteFunc(v.hidden, func(dir, _ string) bool {
		for ; dir != "."; dir = path.Dir(dir) {
			if v.symlinks[dir] {
				return true
			}
		}
		return false
	})
	return v.hidden
}

// checkOwner refuses IDs that chown(2) interprets as "do not change".
func checkOwner(hdr *tar.Header) error {
	for what, id := range map[string]int{"user": hdr.Uid, "group": hdr.Gid} {
		if id < 0 || id >= math.MaxUint32 {
			return refuse("the %s %d is out of range", what, id)
		}
	}
	return nil
}
