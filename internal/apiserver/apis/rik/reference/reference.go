// Package reference reads image references without opening what they name.
//
// A reference is TRANSPORT:NAME, where docker:// is the transport when none is
// given. The riklet hands it to a library that fetches; here it is only
// judged, so that a bad one is refused when a workload is written rather than
// on a node.
package reference

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// MaxLength bounds a reference: a registry's own limit is 255 for the name,
// a digest adds 140 at most, and a path PATH_MAX would allow is absurd here.
const MaxLength = 1024

// Transport is where an image is fetched from.
type Transport string

// The transports that a riklet can fetch from.
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
	// Registry is host[:port]; docker.io when the name gives none.
	Registry string
	// Repository is the path within the registry.
	Repository string
	// Path on the node, for transports other than docker.
	Path string
	// Tag or, for local transports, whatever stands behind the path.
	Tag string
	// Digest with its algorithm, such as sha256:....
	Digest string
}

// Moving says whether the same reference may name another image tomorrow as a
// matter of custom: the tag latest, written or implied, of a registry.
func (r Reference) Moving() bool {
	return r.Transport == Docker && r.Digest == "" && (r.Tag == "" || r.Tag == "latest")
}

// Local says whether the image is a file of the node.
func (r Reference) Local() bool { return r.Transport != Docker }

// The grammar of the distribution project, which registries implement.
var (
	hostPattern   = regexp.MustCompile(`^(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[a-fA-F0-9:.]+\])(?::[0-9]{1,5})?$`)
	partPattern   = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$`)
	tagPattern    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	digestPattern = regexp.MustCompile(`^(?:sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128})$`)
	localTag      = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./:@-]{0,255}$`)
	// What looks like a digest behind a path, whole or not.
	localDigest = regexp.MustCompile(`@sha(?:256|384|512):`)
)

// ErrEmpty is returned for a reference without any text.
var ErrEmpty = errors.New("an image is required")

// Parse reads a reference.
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
		return Reference{}, fmt.Errorf("transport %q is unknown: use docker://, oci:, oci-archive:, docker-archive: or dir:", scheme)
	}
	return parseRemote(s)
}

// looksLocal tells dir:/x from an image that happens to be called "dir:1".
func looksLocal(rest string) bool {
	return rest == "" || strings.ContainsAny(rest, "/") || strings.HasPrefix(rest, ".")
}

func parseLocal(t Transport, rest string) (Reference, error) {
	// Cut at its colon, it would be a path that ends in "@sha256".
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
	// A colon behind the last slash starts a tag; one before it, a port.
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

// splitRegistry takes the first part as a host when it can be nothing else.
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
