package backup

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Format is the version of the format that this package writes. It reads versions 1 to Format.
const Format = 1

// Names of entries in the archive.
const (
	HeaderName   = "header.json"
	ManifestName = "manifest.json"
	filePrefix   = "files/"
	partPrefix   = "objects/"
)

// Limits of what Read accepts. They bound memory for a hostile file.
const (
	maxHeader   = 1 << 20
	maxManifest = 32 << 20
	maxFile     = 4 << 20
	// partTarget is the size at which Writer begins another part. maxPart leaves room for one
	// more entry.
	partTarget = 4 << 20
	maxPart    = 64 << 20
	maxKey     = 64 << 10
	maxParts   = 1 << 17
)

// Errors of Read. Each error that wraps one of them names the next step.
var (
	// ErrNotBackup is returned for a file that is something else.
	ErrNotBackup = errors.New("not a backup of rik")
	// ErrVersion is returned for a backup of a newer format.
	ErrVersion = errors.New("the backup has a newer format")
	// ErrTruncated is returned for a file whose end is missing.
	ErrTruncated = errors.New("the backup is cut short")
	// ErrDamaged is returned for a file with another content than was written.
	ErrDamaged = errors.New("the backup is damaged")
	// ErrKey is returned if the passphrase or the identity does not open the file, or is missing.
	ErrKey = errors.New("the backup cannot be decrypted")
)

// Header describes a backup. It is the first entry of the archive.
type Header struct {
	// Format is the version of the format.
	Format int `json:"format"`
	// ID identifies the backup. It is random.
	ID string `json:"id"`
	// Version is the version of the rik that created the backup.
	Version string `json:"version"`
	// Cluster is the ID of the cluster, and Profile that of its servers.
	Cluster string `json:"cluster"`
	Profile string `json:"profile"`
	// Created is the time at which the revision was read.
	Created time.Time `json:"created"`
	// Datastore is the kind of datastore: etcd, sqlite, postgres or mysql.
	Datastore string `json:"datastore"`
	// Revision is the revision of all objects.
	Revision int64 `json:"revision"`
	// Term is the term of the active controller.
	Term int64 `json:"term"`
}

// Part is the checksum of one entry of the archive.
type Part struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Manifest is the last entry of the archive.
type Manifest struct {
	Header
	// Objects is the number of keys. Resources has it by resource.
	Objects   int64            `json:"objects"`
	Resources map[string]int64 `json:"resources"`
	// Parts are all entries before the manifest, in their order.
	Parts []Part `json:"parts"`
}

// equal reports whether two manifests are of the same content.
func (m *Manifest) equal(o *Manifest) bool {
	return m.Format == o.Format && m.ID == o.ID && m.Objects == o.Objects && maps.Equal(m.Resources, o.Resources) && slices.Equal(m.Parts, o.Parts)
}

// validate reports a header that this version of rik cannot use.
func (h *Header) validate() error {
	switch {
	case h.Format < 1 || h.ID == "" || h.Profile == "":
		return fmt.Errorf("%w: its header has no format, ID or profile", ErrNotBackup)
	case h.Format > Format:
		return fmt.Errorf("%w: version %d, written by rik %s; this rik reads versions up to %d: use rik %s or newer", ErrVersion, h.Format, h.Version, Format, h.Version)
	}
	return nil
}

// Entry is one key of the datastore.
type Entry struct {
	Key, Value []byte
	// TTL is the time after which the datastore deletes the key. Zero means never.
	TTL time.Duration
}

// Resource returns the resource of a key for counts, such as "secrets" or "rik.dev/instances".
func Resource(key string) string {
	rest, ok := strings.CutPrefix(key, "/registry/")
	if !ok {
		return "cluster"
	}
	first, rest, _ := strings.Cut(rest, "/")
	// Custom resources, and rik's own, have their group as the first part.
	if strings.Contains(first, ".") {
		second, _, _ := strings.Cut(rest, "/")
		return first + "/" + second
	}
	return first
}
