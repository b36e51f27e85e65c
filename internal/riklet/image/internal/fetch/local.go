package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"

	"rik.dev/rik/internal/riklet/image/internal/wire"
	"rik.dev/rik/internal/riklet/safeopen"
)

// maxDocument is the maximum size of documents that are parsed as a whole: indexes, manifests
// and configurations. Registries accept no larger manifest.
const maxDocument = 4 << 20

// directory is an image in a directory of this machine: an OCI layout, or the directory of a
// "dir:" reference. It replaces the library's own readers, which accept a manifest of any size,
// do not check it against the index, and block forever on a FIFO.
type directory struct {
	top      string // path of the manifest that the reference names
	instance func(digest.Digest) string
	blob     func(digest.Digest) string
}

func (d *directory) Close() error               { return nil }
func (d *directory) HasThreadSafeGetBlob() bool { return true }

// GetManifest does not return the media type, because the caller has the descriptor.
func (d *directory) GetManifest(_ context.Context, instance *digest.Digest) ([]byte, string, error) {
	path := d.top
	if instance != nil {
		path = d.instance(*instance)
	}
	data, err := readDocument(path)
	return data, "", err
}

// GetBlob requires a valid digest, because the digest becomes a part of a path.
func (d *directory) GetBlob(_ context.Context, info types.BlobInfo, _ types.BlobInfoCache) (io.ReadCloser, int64, error) {
	f, size, err := openRegular(d.blob(info.Digest))
	if err != nil {
		return nil, 0, err
	}
	return f, size, nil
}

// openLayout opens the image with that tag in the OCI layout at dir, or the only image if the
// tag is empty. A tag of the form @N is the index of a manifest. References of users cannot have
// it.
func openLayout(dir, tag string) (*source, error) {
	path := filepath.Join(dir, v1.ImageIndexFile)
	data, err := readDocument(path)
	if err != nil {
		return nil, err
	}
	var index v1.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", wire.ErrRefused, path, err)
	}
	top, err := choose(index.Manifests, tag)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := checkDescriptor(top.Digest, top.Size); err != nil {
		return nil, fmt.Errorf("%s: manifest: %w", path, err)
	}
	blob := func(d digest.Digest) string {
		return filepath.Join(dir, v1.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
	}
	return &source{transport: &directory{top: blob(top.Digest), instance: blob, blob: blob}, top: top, local: true}, nil
}

// choose returns the first manifest of a layout with the tag and a known type. Other objects may
// have the same tag.
func choose(manifests []v1.Descriptor, tag string) (v1.Descriptor, error) {
	if index, ok := strings.CutPrefix(tag, "@"); ok {
		i, err := strconv.Atoi(index)
		if err != nil || i < 0 || i >= len(manifests) {
			return v1.Descriptor{}, fmt.Errorf("%w: the layout has no manifest %s", wire.ErrInvalidReference, index)
		}
		return manifests[i], nil
	}
	if tag == "" {
		switch len(manifests) {
		case 0:
			return v1.Descriptor{}, fmt.Errorf("%w: the layout is empty", wire.ErrNotPresent)
		case 1:
			return manifests[0], nil
		}
		return v1.Descriptor{}, fmt.Errorf("%w: the layout has %d images; append the tag of one to the path", wire.ErrInvalidReference, len(manifests))
	}
	tagged := slices.DeleteFunc(slices.Clone(manifests), func(d v1.Descriptor) bool {
		return d.Annotations[v1.AnnotationRefName] != tag
	})
	if len(tagged) == 0 {
		return v1.Descriptor{}, fmt.Errorf("%w: no image has the tag %q", wire.ErrNotPresent, tag)
	}
	known := slices.IndexFunc(tagged, func(d v1.Descriptor) bool { return slices.Contains(manifestTypes, d.MediaType) })
	return tagged[max(known, 0)], nil
}

var manifestTypes = []string{
	v1.MediaTypeImageManifest, v1.MediaTypeImageIndex, manifest.DockerV2Schema2MediaType, manifest.DockerV2ListMediaType,
}

// dirVersion matches the content of the file "version" of a directory. These versions differ
// only in signatures.
var dirVersion = regexp.MustCompile(`^Directory Transport Version: 1\.[0-2]\n$`)

// openDir opens the directory of a "dir:" reference. The reference has no digest, so any
// manifest in it is accepted.
func openDir(dir string) (*source, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	version, err := readDocument(filepath.Join(dir, "version"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case !dirVersion.Match(version):
		return nil, fmt.Errorf("%w: the directory has the version %.80q", wire.ErrUnsupported, version)
	}
	file := func(d digest.Digest) string {
		name := d.Encoded()
		if d.Algorithm() != digest.Canonical {
			name = d.Algorithm().String() + "-" + name
		}
		return filepath.Join(dir, name)
	}
	return &source{local: true, top: unknown, transport: &directory{
		top:      filepath.Join(dir, "manifest.json"),
		instance: func(d digest.Digest) string { return file(d) + ".manifest.json" },
		blob:     file,
	}}, nil
}

// readDocument reads a file that is parsed as a whole.
func readDocument(path string) ([]byte, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := readAtMost(f)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return data, nil
}

// readAtMost reads r to its end. It fails if that is more than maxDocument.
func readAtMost(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxDocument {
		return nil, fmt.Errorf("%w: more than %d bytes, the limit for an index, a manifest or a configuration", wire.ErrTooLarge, maxDocument)
	}
	return data, nil
}

// openRegular opens a regular file for reading and returns its size.
func openRegular(path string) (*os.File, int64, error) {
	f, err := safeopen.Open(path)
	var not *safeopen.NotRegularError
	if errors.As(err, &not) {
		return nil, 0, fmt.Errorf("%w: %w", wire.ErrRefused, err)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}
