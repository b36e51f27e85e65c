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

// maxIndex is the maximum size of an index that is read to find out whether an image was
// rebuilt, the same as in a pull.
const maxIndex = 4 << 20

// rebuilt reports whether a directory of this node has another image than the one that was read
// from it. It returns false for a directory that is missing or malformed, so that the stored
// image stays in use.
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
	// Digests of another algorithm cannot be compared, because the stored one is canonical.
	return err == nil && now.Validate() == nil && now.Algorithm() == digest.Canonical && now.String() != have
}

func fileDigest(path string) (digest.Digest, error) {
	data, err := readIndex(path)
	return digest.FromBytes(data), err
}

// layoutDigest returns the digest of a tag in an OCI layout, or of its only image. It returns no
// digest if a tag is not unique; the pull handles that case.
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
		return "", errors.New("not exactly one image")
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
