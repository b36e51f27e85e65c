// Package wire is what the image store and its child process say to each
// other, one JSON value a line, over the child's standard input and output:
//
//	store → child   Request
//	child → store   Event{Resolved}: the layers that the image is made of
//	store → child   Ack: they are pinned, none will be collected
//	child → store   Event{Progress}, Event{Layer}...
//	child → store   Event{Result} or Event{Failure}, the last line
//
// A Request to unpack an Archive has the first, those of the progress, and the last line.
//
// The store keeps the child's standard input open. Its end means that the
// store is gone, and the child stops.
package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// The reasons of a failed pull, tested with errors.Is on both sides.
var (
	ErrNotPresent       = errors.New("image not present")
	ErrInvalidReference = errors.New("invalid image reference")
	ErrTooLarge         = errors.New("image over the limit")
	ErrRefused          = errors.New("image refused")
	ErrDigest           = errors.New("content does not match its digest")
	ErrPlatform         = errors.New("image is for another platform")
	ErrUnsupported      = errors.New("unsupported image format")
	ErrUnauthorized     = errors.New("registry denied access")
	ErrNoSpace          = errors.New("no space left for images")
	ErrTimeout          = errors.New("pull took too long")
	ErrStalled          = errors.New("pull makes no progress")
)

// codes names the reasons on the wire. An error can have several: a transfer
// that ran out of time also broke off in the middle of an archive. The first
// that fits is the cause.
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

// Limits bound one pull. A zero field takes the default.
type Limits struct {
	Bytes           int64         // unpacked, all layers together: 16 GiB
	CompressedBytes int64         // as transferred, all layers together: 8 GiB
	Entries         int64         // files, directories, links, all layers together: 1,000,000
	Time            time.Duration // from the start of the child to its end: 30 minutes
	Stall           time.Duration // how long the registry may say nothing: 90 seconds
	// ReserveBytes stay free on the file system: a pull that would go below
	// fails, so that an image cannot fill the node. The default is a fiftieth
	// of the file system, 512 MiB at most.
	ReserveBytes int64
}

// Default limits. The largest images in common use (CUDA, machine learning)
// unpack to 10 to 15 GiB and 300,000 entries.
const (
	DefaultBytes           = 16 << 30
	DefaultCompressedBytes = 8 << 30
	DefaultEntries         = 1_000_000
	DefaultTime            = 30 * time.Minute
	DefaultStall           = 90 * time.Second
)

// WithDefaults fills the zero fields; ReserveBytes is for the child to fill,
// which looks at the file system.
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

// Request is the one order that a child gets.
type Request struct {
	Transport      string // docker, oci, oci-archive, docker-archive, dir
	Target         string // the reference within the transport
	Auth           []byte `json:",omitempty"` // dockerconfigjson
	LayersDir      string // where finished layers are and go
	TempDir        string // on the same file system; the store removes it
	Limits         Limits
	CertDir        string `json:",omitempty"`
	RegistriesConf string `json:",omitempty"`
	// AuthFile has the node's own credentials for registries; empty: it has none.
	AuthFile string `json:",omitempty"`
	// AllowNetworks may be connected to although they are not public.
	AllowNetworks []netip.Prefix `json:",omitempty"`
	// Archive asks for a plain archive instead of an image; of the fields above only
	// Limits counts.
	Archive *Archive `json:",omitempty"`
}

// Archive is a file that is no image: a tar or zip archive, or a compressed ext4 image.
type Archive struct {
	File string
	// Dir is an empty directory. A tree goes to ContentDir in it, an ext4 image to
	// ImageFile.
	Dir  string
	Form Form
}

// Form says what an archive is to become.
type Form string

// The forms of an archive.
const (
	// FormRoot is the root of a machine of its own: owners, modes and attributes are
	// kept, and an ext4 image is accepted too.
	FormRoot Form = "root"
	// FormShared is files of the node that all its users may read: root's, without
	// set-user-ID bits and attributes.
	FormShared Form = "shared"
)

// ImageFile is the name of an ext4 image in Archive.Dir.
const ImageFile = "image"

// Unpacked says what an archive was found to be.
type Unpacked struct {
	Image   bool // ImageFile, otherwise ContentDir
	Bytes   int64
	Entries int64
	Skipped []string // device nodes and the like that were left out, a few of their names
}

// Ack lets the child go on after Resolved.
type Ack struct{ Pinned bool }

// Event is one line from the child; exactly one field is set.
type Event struct {
	Resolved *Resolved `json:",omitempty"`
	Progress *Progress `json:",omitempty"`
	Layer    *Layer    `json:",omitempty"`
	Result   *Result   `json:",omitempty"`
	Failure  *Failure  `json:",omitempty"`
}

// Resolved says what the reference stands for.
type Resolved struct {
	Digest digest.Digest   // of the manifest, or of the index it was chosen from
	Chain  []digest.Digest // chain identifiers of the layers, lowest first
}

// Progress is how much was transferred, or read of an archive, once a second while that changes.
type Progress struct {
	Step  string `json:",omitempty"` // what comes before the transfer; empty: the transfer
	Bytes int64  // as transferred
	Total int64  // of the layers that the store does not have; 0: not known
}

// Layer reports a finished layer.
type Layer struct {
	Index   int
	Digest  digest.Digest
	Reused  bool     // it was in the store
	Bytes   int64    // unpacked
	Entries int64    // in its archive
	Skipped []string // device nodes left out, a few of their names
}

// Result ends a pull that worked.
type Result struct {
	Digest digest.Digest
	Config v1.ImageConfig
	// Architecture of the image as Go names it; empty: it does not say.
	Architecture string `json:",omitempty"`
	Chain        []digest.Digest
	Bytes        int64 // unpacked, shared layers included
	// Archive ends a Request for one; the fields above are empty then.
	Archive *Unpacked `json:",omitempty"`
}

// Failure ends a pull that did not.
type Failure struct {
	Code    string // "" when the reason is none of the known
	Message string
}

// FailureOf packs err for the wire.
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

// Err unpacks a failure into an error that carries its reason.
func (f *Failure) Err() error {
	e := &remoteError{message: f.Message}
	for _, c := range codes {
		if c.code == f.Code {
			e.reason = c.sentinel
		}
	}
	return e
}

// remoteError is an error of the child. Its message has the text of the reason
// already, so that it is not repeated.
type remoteError struct {
	message string
	reason  error
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.reason }

// Stored describes a layer in the store: the file layer.json beside its
// content.
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

// LayerDir is the name, under the layers directory, of the layer with that
// chain identifier.
func LayerDir(chain digest.Digest) (string, error) {
	if err := chain.Validate(); err != nil {
		return "", fmt.Errorf("layer %q: %w", chain, err)
	}
	return chain.Algorithm().String() + "-" + chain.Encoded(), nil
}
