package image

import (
	// Digests of all three algorithms may be in references.
	_ "crypto/sha256"
	_ "crypto/sha512"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/distribution/reference"

	"rik.dev/rik/api/rik/v1alpha1"
)

// transportDocker is the transport of registries, and the default.
const transportDocker = "docker"

// parsedReference is a reference in canonical form.
type parsedReference struct {
	transport string
	target    string // without the transport; always with registry, and tag or digest
}

// String returns the key of the reference in the store.
func (r parsedReference) String() string {
	if r.transport == transportDocker {
		return "docker://" + r.target
	}
	return r.transport + ":" + r.target
}

// maxReference limits the length of a reference: a host name, a path, a tag and a digest.
const maxReference = 1024

// layoutTag is the OCI image specification's grammar of reference names, without slashes and
// colons at its ends.
var layoutTag = regexp.MustCompile(`^[A-Za-z0-9]+([-._:@/+][A-Za-z0-9]+|--[A-Za-z0-9]+)*$`)

// localDigest matches a digest after a path. The local transports have no digests, and without
// this check the path would end in "@sha256".
var localDigest = regexp.MustCompile(`@sha(256|384|512):`)

// parseReference accepts a registry's "name", "name:tag", "host:port/name" and "name@sha256:…",
// with or without the prefix "docker://". Without a tag it is "latest". It also accepts the
// local "oci:/dir[:tag]", "oci-archive:/file[:tag]", "docker-archive:/file[:name:tag|:@index]"
// and "dir:/dir", whose paths must be absolute.
func parseReference(s string) (parsedReference, error) {
	if s == "" || len(s) > maxReference {
		return parsedReference{}, fmt.Errorf("%w: it has %d characters, and 1 to %d are allowed", ErrInvalidReference, len(s), maxReference)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
		return parsedReference{}, fmt.Errorf("%w: %q has white space or unprintable characters in it", ErrInvalidReference, s)
	}
	transport, target, _ := strings.Cut(s, ":")
	switch transport {
	case "oci", "oci-archive", "docker-archive", "dir":
		return parseLocal(s, transport, target)
	}
	if scheme, _, ok := strings.Cut(s, "://"); ok && scheme != transportDocker {
		return parsedReference{}, fmt.Errorf("%w: %q: unknown transport %q", ErrInvalidReference, s, scheme)
	}
	return parseRegistry(s)
}

func parseRegistry(s string) (parsedReference, error) {
	named, err := reference.ParseNormalizedNamed(strings.TrimPrefix(s, "docker://"))
	if err != nil {
		return parsedReference{}, fmt.Errorf("%w: %q: %w", ErrInvalidReference, s, err)
	}
	if digested, ok := named.(reference.Digested); ok {
		// The digest identifies the image; a tag next to it is ignored.
		canonical, err := reference.WithDigest(reference.TrimNamed(named), digested.Digest())
		if err != nil {
			return parsedReference{}, fmt.Errorf("%w: %q: %w", ErrInvalidReference, s, err)
		}
		return parsedReference{transportDocker, canonical.String()}, nil
	}
	return parsedReference{transportDocker, reference.TagNameOnly(named).String()}, nil
}

func parseLocal(s, transport, target string) (parsedReference, error) {
	if localDigest.MatchString(target) {
		return parsedReference{}, fmt.Errorf("%w: %q: %s does not support digests; name the image by its tag", ErrInvalidReference, s, transport)
	}
	path, image, tagged := strings.Cut(target, ":")
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return parsedReference{}, fmt.Errorf("%w: %q: the path %q is not absolute and clean; for an image of this name in a registry write docker://%s", ErrInvalidReference, s, path, s)
	}
	r := parsedReference{transport, target}
	if !tagged {
		return r, nil
	}
	var err error
	switch {
	case transport == "dir":
		err = fmt.Errorf("dir: does not support tags or colons in the path")
	case transport != "docker-archive":
		if !layoutTag.MatchString(image) {
			err = fmt.Errorf("malformed tag %q", image)
		}
	case strings.HasPrefix(image, "@"):
		_, err = strconv.ParseUint(image[1:], 10, 16)
	default:
		_, err = reference.ParseNormalizedNamed(image)
	}
	if err != nil {
		return parsedReference{}, fmt.Errorf("%w: %q: %w", ErrInvalidReference, s, err)
	}
	return r, nil
}

// policyOf resolves the default policy: a registry's "latest" may change.
func (r parsedReference) policyOf(p v1alpha1.PullPolicy) (v1alpha1.PullPolicy, error) {
	switch p {
	case v1alpha1.PullAlways, v1alpha1.PullIfNotPresent, v1alpha1.PullNever:
		return p, nil
	case "":
		if r.transport == transportDocker && strings.HasSuffix(r.target, ":latest") {
			return v1alpha1.PullAlways, nil
		}
		return v1alpha1.PullIfNotPresent, nil
	}
	return "", fmt.Errorf("%w: unknown pull policy %q", ErrInvalidReference, p)
}
