package ociimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// pack returns the plain archive of l, its compressed form and the media type for the manifest.
func pack(l Layer) (plain, packed []byte, mediaType string, err error) {
	plain = l.Tar
	if plain == nil {
		if plain, err = Tar(l.Files); err != nil {
			return nil, nil, "", err
		}
	}
	var buf bytes.Buffer
	var w io.WriteCloser
	switch l.Compression {
	case Gzip, "":
		mediaType, w = v1.MediaTypeImageLayerGzip, gzip.NewWriter(&buf)
	case Zstd:
		mediaType = v1.MediaTypeImageLayerZstd
		// Use one goroutine, because with several the output depends on the machine.
		if w, err = zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1)); err != nil {
			return nil, nil, "", err
		}
	case Uncompressed:
		mediaType = v1.MediaTypeImageLayer
	default:
		return nil, nil, "", fmt.Errorf("unknown compression %q", l.Compression)
	}
	if l.MediaType != "" {
		mediaType = l.MediaType
	}
	if w == nil {
		return plain, plain, mediaType, nil
	}
	if _, err := w.Write(plain); err != nil {
		return nil, nil, "", err
	}
	if err := w.Close(); err != nil {
		return nil, nil, "", err
	}
	return plain, buf.Bytes(), mediaType, nil
}

// Tar packs files into an archive, parents first and hard links last. It adds missing parent
// directories, like image builders.
func Tar(files map[string]File) ([]byte, error) {
	all := map[string]File{}
	for name, f := range files {
		name = strings.TrimPrefix(path.Clean("/"+name), "/")
		if name == "" {
			continue
		}
		all[name] = f
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = File{Dir: true}
			}
		}
	}
	// An added parent may have replaced a file that was processed after its child.
	for name, f := range files {
		if name = strings.TrimPrefix(path.Clean("/"+name), "/"); name != "" {
			all[name] = f
		}
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	names := slices.Sorted(maps.Keys(all))
	for _, linksNow := range []bool{false, true} {
		for _, name := range names {
			if (all[name].HardLink != "") != linksNow {
				continue
			}
			if err := writeEntry(tw, name, all[name]); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func writeEntry(tw *tar.Writer, name string, f File) error {
	hdr := &tar.Header{Name: name, ModTime: epoch, Uid: f.UID, Gid: f.GID, Format: tar.FormatPAX}
	content, mode := f.Content, fs.FileMode(0o644)
	switch {
	case f.Dir:
		hdr.Typeflag, hdr.Name, mode = tar.TypeDir, name+"/", 0o755
	case f.Link != "":
		hdr.Typeflag, hdr.Linkname, mode = tar.TypeSymlink, f.Link, 0o777
	case f.HardLink != "":
		hdr.Typeflag, hdr.Linkname = tar.TypeLink, f.HardLink
	case f.Source != "":
		hdr.Typeflag, mode = tar.TypeReg, 0o755
		var err error
		if content, err = os.ReadFile(f.Source); err != nil {
			return err
		}
	default:
		hdr.Typeflag = tar.TypeReg
	}
	if f.Mode != 0 {
		mode = f.Mode
	}
	hdr.Mode = unixMode(mode)
	if hdr.Typeflag == tar.TypeReg {
		hdr.Size = int64(len(content))
	}
	if err := tw.WriteHeader(hdr); err != nil {
		return err
	}
	if hdr.Typeflag != tar.TypeReg {
		return nil
	}
	_, err := tw.Write(content)
	return err
}

// unixMode converts Go's mode bits to those of a tar header.
func unixMode(m fs.FileMode) int64 {
	bits := int64(m.Perm())
	for goBit, tarBit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&goBit != 0 {
			bits |= tarBit
		}
	}
	return bits
}
