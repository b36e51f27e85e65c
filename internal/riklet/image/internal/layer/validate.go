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

// verdict is what to do with an entry that is not refused.
type verdict int

const (
	unpack       verdict = iota
	unpackOpaque         // a directory in the place of what the layer hides
	ignore               // archive metadata, no file
	skipDevice           // a device node: images have them, containers get their own
)

// Whiteouts of the OCI image specification: ".wh.name" hides name of the
// layers below, ".wh..wh..opq" all that its directory has in them. Docker's
// aufs left other names with the prefix ".wh..wh." behind, which mean nothing.
const (
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."
	whiteoutOpaque = ".wh..wh..opq"
)

// validator refuses entries. It knows, by path in the layer, what the entries
// before made that matters for those that follow.
type validator struct {
	root string
	// plain archives have no whiteouts: there is nothing below to hide.
	plain    bool
	symlinks map[string]bool
	devices  map[string]bool   // skipped ones
	listed   map[string]bool   // directories with an entry of their own
	implied  map[string]bool   // directories that were made for their children
	hidden   map[string]string // directories with whiteouts: the first of them
	removed  map[string]bool   // what whiteouts hide, one by one
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

// check decides on one entry and remembers it.
func (v *validator) check(hdr *tar.Header) (verdict, error) {
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

// path cleans the name of an entry, or the target of a hard link. A leading
// slash means the layer's root, as in every unpacker; "..", which no image
// builder writes, is refused even where it would stay inside.
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

func (v *validator) whiteout(name, base string) (verdict, error) {
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

func (v *validator) file(hdr *tar.Header, name string) (verdict, error) {
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

// hardLink refuses a link to anything but a file of this layer. It reports
// whether to leave the link out, as its target was.
func (v *validator) hardLink(hdr *tar.Header) (skip bool, err error) {
	target, err := v.path(hdr.Linkname)
	if err != nil {
		return false, fmt.Errorf("hard link: %w", err)
	}
	if v.devices[target] {
		return true, nil
	}
	// No component of the path is a symbolic link: v.path saw to that, and
	// the directory was empty before this layer.
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

// forget drops what an earlier entry of the same path was.
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

// implicit lists the directories without an entry of their own, sorted.
func (v *validator) implicit() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(v.implied)), func(dir string) bool { return v.listed[dir] })
}

// hiding lists the directories with whiteouts, less those that a later entry
// made a symbolic link of, or of what they are in.
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

// checkOwner refuses identifiers that chown(2) takes for "do not change".
func checkOwner(hdr *tar.Header) error {
	for what, id := range map[string]int{"user": hdr.Uid, "group": hdr.Gid} {
		if id < 0 || id >= math.MaxUint32 {
			return refuse("the %s %d is out of range", what, id)
		}
	}
	return nil
}
