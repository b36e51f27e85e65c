// Package wire is the protocol between the image store and its child process. It has one JSON
// value per line, over the child's standard input and output:
//
//	store → child   Request
//	child → store   Event{Resolved}: the layers of the image
//	store → child   Ack: they are pinned, none will be removed
//	child → store   Event{Progress}, Event{Layer}...
//	child → store   Event{Result} or Event{Failure}, the last line
//
// A Request to unpack an Archive, to Open a file with images, to Export an image or to Check
// settings has only the first line, progress and the last line. The bytes of an archive go through the child's file
// descriptor StreamFile.
//
// The store keeps the child's standard input open. When it is closed, the store is gone, and the
// child stops.
package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// The reasons of a failed pull. Both sides test them with errors.Is.
var (
	ErrNotPresent       = errors.New("image not present")
	ErrInvalidReference = errors.New("invalid image reference")
	ErrTooLarge         = errors.New("image exceeds the limit")
	ErrRefused          = errors.New("image refused")
	ErrDigest           = errors.New("content does not match its digest")
	ErrPlatform         = errors.New("image is for another platform")
	ErrUnsupported      = errors.New("unsupported image format")
	ErrUnauthorized     = errors.New("registry denied access")
	ErrNoSpace          = errors.New("no space left for images")
	ErrTimeout          = errors.New("pull took too long")
	ErrStalled          = errors.New("pull makes no progress")
)

// codes maps the reasons to their names in messages. An error can have several: a transfer that
// timed out was also cut in the middle of an archive. The first match is the cause.
var codes = []struct {
	code     string
	sentinel error
}{
	{"timeout", ErrTimeout},
	{"stalled", ErrStalled},
	{"no-space", ErrNoSpace},
	{"too-large", ErrTooLarge},
	{"unauthorized", ErrUnauthorized},
	{"not-present", ErrNotPresent},
	{"invalid-reference", ErrInvalidReference},
	{"platform", ErrPlatform},
	{"unsupported", ErrUnsupported},
	{"digest", ErrDigest},
	{"refused", ErrRefused},
}

// Limits limits one pull. The zero value of a field means the default.
type Limits struct {
	Bytes           int64         // unpacked, all layers together: 16 GiB
	CompressedBytes int64         // as transferred, all layers together: 8 GiB
	Entries         int64         // files, directories, links, all layers together: 1,000,000
	Time            time.Duration // from the start of the child to its end: 30 minutes
	Stall           time.Duration // how long the registry may send nothing: 90 seconds
	// ReserveBytes must stay free on the file system. A pull that would use them fails, so that
	// an image cannot fill the node's disk. The default is a fiftieth of the file system, at
	// most 512 MiB.
	ReserveBytes int64
}

// Default limits. The largest images in common use (CUDA, machine learning) unpack to 10 to 15
// GiB and 300,000 entries.
const (
	DefaultBytes           = 16 << 30
	DefaultCompressedBytes = 8 << 30
	DefaultEntries         = 1_000_000
	DefaultTime            = 30 * time.Minute
	DefaultStall           = 90 * time.Second
)

// WithDefaults sets the fields that are zero, except ReserveBytes. The child sets that one,
// because it depends on the file system.
func (l Limits) WithDefaults() Limits {
	if l.Bytes <= 0 {
		l.Bytes = DefaultBytes
	}
	if l.CompressedBytes <= 0 {
		l.CompressedBytes = DefaultCompressedBytes
	}
	if l.Entries <= 0 {
		l.Entries = DefaultEntries
	}
	if l.Time <= 0 {
		l.Time = DefaultTime
	}
	if l.Stall <= 0 {
		l.Stall = DefaultStall
	}
	return l
}

// Request is the only request to a child.
type Request struct {
	Transport      string // docker, oci, oci-archive, docker-archive, dir
	Target         string // the reference within the transport
	Auth           []byte `json:",omitempty"` // dockerconfigjson
	LayersDir      string // directory of complete layers
	TempDir        string // on the same file system; the store removes it
	Limits         Limits
	CertDir        string `json:",omitempty"`
	RegistriesConf string `json:",omitempty"`
	// AuthFile has the node's own credentials for registries; empty means none.
	AuthFile string `json:",omitempty"`
	// AllowNetworks lists networks that are allowed although they are not public.
	AllowNetworks []netip.Prefix `json:",omitempty"`
	// Archive requests to unpack an archive instead of an image. Of the fields above, only
	// Limits is used then.
	Archive *Archive `json:",omitempty"`
	// Open requests to find the images in a file. Of the fields above, only TempDir and Limits are
	// used then.
	Open *Open `json:",omitempty"`
	// Check requests to validate the settings for registries. Of the fields above, only CertDir,
	// RegistriesConf, AuthFile and Limits are used then.
	Check bool `json:",omitempty"`
	// Export requests to write an image. Of the fields above, only LayersDir, TempDir and Limits
	// are used then.
	Export *Export `json:",omitempty"`
}

// Open is a file with images: an OCI layout or a docker archive in a tar archive, which may be
// compressed.
type Open struct {
	// File is empty if the child reads the archive from its file descriptor StreamFile.
	File string `json:",omitempty"`
}

// Opened has the images of such a file. A Request with the Transport and a Target pulls one of
// them. The targets are below TempDir, or the file itself.
type Opened struct {
	Transport string
	Images    []Packed
}

// Packed is one image in an archive.
type Packed struct {
	Target string
	Names  []string // full references, as the archive has them
	Tag    string   // of an image without a name; may be empty
}

// Export is an image to write as an OCI layout in a tar archive.
type Export struct {
	Reference    string // the name in the archive; may be empty
	Config       v1.ImageConfig
	Architecture string // empty means the node's
	Chain        []digest.Digest
}

// StreamFile is the file descriptor from which the child reads the archive of an Open, and to which
// it writes an Export.
const StreamFile = 3

// Archive is a file that is not an image: a tar or zip archive, or a compressed ext4 image.
type Archive struct {
	File string
	// Dir is an empty directory. A tree is written to ContentDir in it, an ext4 image to
	// ImageFile.
	Dir  string
	Form Form
}

// Form is what to make of an archive.
type Form string

// The forms of an archive.
const (
	// FormRoot makes the root of a machine: owners, modes and attributes are kept, and an ext4
	// image is accepted too.
	FormRoot Form = "root"
	// FormShared makes files of the node that all its users may read. They are owned by root,
	// without set-user-ID bits and attributes.
	FormShared Form = "shared"
)

// ImageFile is the name of an ext4 image in Archive.Dir.
const ImageFile = "image"

// Unpacked describes an unpacked archive.
type Unpacked struct {
	Image   bool // whether it is ImageFile and not ContentDir
	Bytes   int64
	Entries int64
	Skipped []string // names of the first few entries left out, such as device nodes
}

// Ack allows the child to continue after Resolved.
type Ack struct{ Pinned bool }

// Event is one line from the child; exactly one field is set.
type Event struct {
	Resolved *Resolved `json:",omitempty"`
	Progress *Progress `json:",omitempty"`
	Layer    *Layer    `json:",omitempty"`
	Result   *Result   `json:",omitempty"`
	Failure  *Failure  `json:",omitempty"`
}

// Resolved is the resolved reference.
type Resolved struct {
	Digest digest.Digest   // of the manifest, or of the index that selected it
	Chain  []digest.Digest // chain identifiers of the layers, lowest first
}

// Progress is the amount transferred, or read from an archive. It is sent once a second while it
// changes.
type Progress struct {
	Step  string `json:",omitempty"` // the step before the transfer; empty: the transfer
	Bytes int64  // as transferred
	Total int64  // of the layers that the store lacks; 0: unknown
}

// Layer reports a complete layer.
type Layer struct {
	Index   int
	Digest  digest.Digest
	Reused  bool     // it was in the store
	Bytes   int64    // unpacked
	Entries int64    // in its archive
	Skipped []string // names of the first few device nodes left out
}

// Result is the end of a successful pull.
type Result struct {
	Digest digest.Digest
	Config v1.ImageConfig
	// Architecture is the image's architecture as Go names it; empty if the image does not
	// define it.
	Architecture string `json:",omitempty"`
	Chain        []digest.Digest
	Bytes        int64 // unpacked, shared layers included
	// Archive is the result of a Request for an archive; the fields above are empty then.
	Archive *Unpacked `json:",omitempty"`
	// Opened is the result of a Request to open a file.
	Opened *Opened `json:",omitempty"`
	// Exported is the size of an export.
	Exported int64 `json:",omitempty"`
}

// Failure is the end of a failed pull.
type Failure struct {
	Code    string // "" if the reason is not one of the codes
	Message string
}

// FailureOf converts err to a Failure.
func FailureOf(err error) *Failure {
	f := &Failure{Message: err.Error()}
	for _, c := range codes {
		if errors.Is(err, c.sentinel) {
			f.Code = c.code
			break
		}
	}
	return f
}

// Err converts a failure to an error that wraps its reason.
func (f *Failure) Err() error {
	e := &remoteError{message: f.Message}
	for _, c := range codes {
		if c.code == f.Code {
			e.reason = c.sentinel
		}
	}
	return e
}

// remoteError is an error of the child. Its message contains the text of the reason already, so
// Error does not add it.
type remoteError struct {
	message string
	reason  error
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.reason }

// Stored describes a layer in the store: the file layer.json next to its content.
type Stored struct {
	Chain   digest.Digest
	DiffID  digest.Digest
	Bytes   int64
	Entries int64
}

// Names inside a layer's directory.
const (
	ContentDir = "fs"
	StoredFile = "layer.json"
)

// LayerDir returns the name, under the layers directory, of the layer with that chain
// identifier.
func LayerDir(chain digest.Digest) (string, error) {
	if err := chain.Validate(); err != nil {
		return "", fmt.Errorf("layer %q: %w", chain, err)
	}
	return chain.Algorithm().String() + "-" + chain.Encoded(), nil
}
