package image

import (
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"rik.dev/rik/internal/riklet/safeopen"
)

// maxIndex bounds what is read to find out whether an image was made anew, as a pull does.
const maxIndex = 4 << 20

// rebuilt tells whether a directory of this node has another image than the one that was read
// from it. One that is not there any more, or that makes no sense, is no other: what was read
// before goes on being used.
func (r parsedReference) rebuilt(have string) bool {
	dir, tag, _ := strings.Cut(r.target, ":")
	var now digest.Digest
	var err error
	switch r.transport {
	case "oci":
		now, err = layoutDigest(dir, tag)
	case "dir":
		now, err = fileDigest(filepath.Join(dir, "manifest.json"))
	default:
		return false
	}
	// Of another algorithm nothing can be said: what was read is noted by this one.
	return err == nil && now.Validate() == nil && now.Algorithm() == digest.Canonical && now.String() != have
}

func fileDigest(path string) (digest.Digest, error) {
	data, err := readIndex(path)
	return digest.FromBytes(data), err
}

// layoutDigest is what the index of an OCI layout says of a tag, or of its only image. A layout
// in which a tag is not unique is left to a pull.
func layoutDigest(dir, tag string) (digest.Digest, error) {
	data, err := readIndex(filepath.Join(dir, v1.ImageIndexFile))
	if err != nil {
		return "", err
	}
	var index v1.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return "", err
	}
	var found []digest.Digest
	for _, m := range index.Manifests {
		if tag == "" || m.Annotations[v1.AnnotationRefName] == tag {
			found = append(found, m.Digest)
		}
	}
	if len(found) != 1 {
		return "", errors.New("no single image")
	}
	return found[0], nil
}

func readIndex(path string) ([]byte, error) {
	f, err := safeopen.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxIndex+1))
	if err == nil && len(data) > maxIndex {
		err = errors.New("too large")
	}
	return data, err
}
