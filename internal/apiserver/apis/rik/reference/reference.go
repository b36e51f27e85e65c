// Package reference parses image references. It does not access the images.
//
// A reference is TRANSPORT:NAME. Without a transport it is docker://. The riklet passes it to a
// library that fetches the image. This package only validates it, so that the API rejects a wrong
// reference before it reaches a node.
package reference

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// MaxLength is the maximum length of a reference. A registry limits names to 255 bytes, and a
// digest adds at most 140. No real path needs the length that PATH_MAX allows.
const MaxLength = 1024

// Transport is the kind of source of an image.
type Transport string

// The transports that a riklet supports.
const (
	Docker        Transport = "docker"
	OCI           Transport = "oci"
	OCIArchive    Transport = "oci-archive"
	DockerArchive Transport = "docker-archive"
	Dir           Transport = "dir"
)

// Reference is a parsed image reference.
type Reference struct {
	Transport Transport
	// Registry is host[:port], docker.io by default.
	Registry string
	// Repository is the path within the registry.
	Repository string
	// Path is the path on the node, for transports other than docker.
	Path string
	// Tag is the tag. For local transports it is the text after the path.
	Tag string
	// Digest is the digest with its algorithm, such as sha256:....
	Digest string
}

// Moving reports whether the reference usually names another image later. That is the tag latest
// of a registry, which is also the default tag.
func (r Reference) Moving() bool {
	return r.Transport == Docker && r.Digest == "" && (r.Tag == "" || r.Tag == "latest")
}

// Local reports whether the image is a file of the node.
func (r Reference) Local() bool { return r.Transport != Docker }

// The grammar of the distribution project, which registries implement.
var (
	hostPattern   = regexp.MustCompile(`^(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[a-fA-F0-9:.]+\])(?::[0-9]{1,5})?$`)
	partPattern   = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$`)
	tagPattern    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	digestPattern = regexp.MustCompile(`^(?:sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128})$`)
	localTag      = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./:@-]{0,255}$`)
	// The beginning of a digest after a path.
	localDigest = regexp.MustCompile(`@sha(?:256|384|512):`)
)

// ErrEmpty is the error of an empty reference.
var ErrEmpty = errors.New("an image is required")

// Parse parses and validates a reference.
func Parse(s string) (Reference, error) {
	if s == "" {
		return Reference{}, ErrEmpty
	}
	if len(s) > MaxLength {
		return Reference{}, fmt.Errorf("must have at most %d bytes", MaxLength)
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return Reference{}, fmt.Errorf("contains a space, a control character or a non-ASCII character at byte %d", i)
		}
	}
	if rest, ok := strings.CutPrefix(s, "docker://"); ok {
		return parseRemote(rest)
	}
	for _, t := range []Transport{OCI, OCIArchive, DockerArchive, Dir} {
		if rest, ok := strings.CutPrefix(s, string(t)+":"); ok && looksLocal(rest) {
			return parseLocal(t, rest)
		}
	}
	if scheme, _, ok := strings.Cut(s, "://"); ok {
		return Reference{}, fmt.Errorf("transport %q is unknown: use docker://, oci:, oci-archive:, docker-archive: or dir: before the image", scheme)
	}
	return parseRemote(s)
}

// looksLocal distinguishes dir:/x from an image with the name "dir" and the tag "1".
func looksLocal(rest string) bool {
	return rest == "" || strings.ContainsAny(rest, "/") || strings.HasPrefix(rest, ".")
}

func parseLocal(t Transport, rest string) (Reference, error) {
	// The colon of a digest would separate a tag, and the path would end in "@sha256".
	if localDigest.MatchString(rest) {
		return Reference{}, fmt.Errorf("%s: does not support digests; name the image by its tag, or serve it from a registry", t)
	}
	r := Reference{Transport: t, Path: rest}
	if t == Dir && strings.Contains(rest, ":") {
		return Reference{}, errors.New("dir: does not support tags or colons in the path")
	}
	if t != Dir {
		r.Path, r.Tag, _ = strings.Cut(rest, ":")
		if r.Tag != "" && !localTag.MatchString(r.Tag) {
			return Reference{}, fmt.Errorf("%q is not a valid name of an image in an archive", r.Tag)
		}
	}
	switch {
	case r.Path == "":
		return Reference{}, errors.New("a path is required after " + string(t) + ":")
	case !path.IsAbs(r.Path):
		return Reference{}, errors.New("the path must be absolute, because it is a path on the node")
	case path.Clean(r.Path) != r.Path:
		return Reference{}, fmt.Errorf("the path must not contain \".\", \"..\", doubled slashes or a final slash: write %q", path.Clean(r.Path))
	case r.Path == "/":
		return Reference{}, errors.New("the path must not be the root directory")
	}
	return r, nil
}

func parseRemote(s string) (Reference, error) {
	r := Reference{Transport: Docker}
	name, digest, hasDigest := strings.Cut(s, "@")
	if hasDigest {
		if !digestPattern.MatchString(digest) {
			return Reference{}, fmt.Errorf("%q is not a digest: write sha256: and 64 hexadecimal digits", digest)
		}
		r.Digest = digest
	}
	// A colon after the last slash starts a tag. A colon before that slash starts a port.
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, r.Tag = name[:i], name[i+1:]
		if !tagPattern.MatchString(r.Tag) {
			return Reference{}, fmt.Errorf("%q is not a valid tag", r.Tag)
		}
	}
	r.Registry, r.Repository = splitRegistry(name)
	if !hostPattern.MatchString(r.Registry) {
		return Reference{}, fmt.Errorf("%q is not a valid host of a registry", r.Registry)
	}
	if r.Repository == "" {
		return Reference{}, errors.New("a repository is required")
	}
	if len(name) > 255 {
		return Reference{}, errors.New("the name must have at most 255 bytes")
	}
	for part := range strings.SplitSeq(r.Repository, "/") {
		if !partPattern.MatchString(part) {
			return Reference{}, fmt.Errorf("%q is not valid in the name of a repository: use lower-case letters, digits and single separators", part)
		}
	}
	return r, nil
}

// splitRegistry splits a name. The first part is a host if it cannot be a part of a repository.
func splitRegistry(name string) (registry, repository string) {
	first, rest, found := strings.Cut(name, "/")
	if found && (strings.ContainsAny(first, ".:[") || first == "localhost" || strings.ToLower(first) != first) {
		return first, rest
	}
	if !found {
		return "docker.io", "library/" + name
	}
	return "docker.io", name
}
