// Package disk creates the block images from which microVMs boot. A block image has an image's
// files as one ext4 file system, is created once, and is shared read-only by all its users. The
// package also creates a writable disk for each instance.
package disk

import (
	"context"
	"errors"
	"time"

	"rik.dev/rik/internal/riklet/image"
)

var (
	// ErrRefused is returned for content that is malformed or inconsistent.
	ErrRefused = errors.New("the root file system is refused")
	// ErrTooLarge is returned if a limit on bytes or entries was exceeded.
	ErrTooLarge = errors.New("the root file system is too large")
	// ErrDigest is returned if content does not match its checksum.
	ErrDigest = errors.New("the checksum of the root file system does not match")
	// ErrNoSpace is returned if the file system of the store has no space left above the
	// reserve. Incomplete files are removed.
	ErrNoSpace = errors.New("no space left for block images")
	// ErrNoTools is returned if the node lacks the programs that create file systems.
	ErrNoTools = errors.New("a program is missing")
)

// Image is a read-only ext4 image in the store. It stays as long as it is pinned.
type Image struct {
	// Digest identifies the content: of the OCI image's manifest, or of the download.
	Digest string
	// Path of the file. It has mode 0444, belongs to root, and is below the riklet's own
	// directory, which other users cannot enter. Link gives one of them access.
	Path  string
	Bytes int64
	// Config is the configuration of an OCI image; empty for a URL.
	Config ImageConfig
}

// ImageConfig is the part of an OCI image's configuration that a process needs.
type ImageConfig struct {
	Entrypoint, Cmd, Env []string
	WorkingDir, User     string
	StopSignal           string
}

// URLRequest requests a root file system by URL.
type URLRequest struct {
	// URL is https, or http if the store allows it, or a path with AllowPath.
	URL string
	// SHA256 of the download in hex; empty means that it is not verified.
	SHA256 string
}

// Store manages the block images of a node. It is safe for concurrent use.
type Store interface {
	// FromImage returns the block image of a pulled OCI image. The first call creates it;
	// simultaneous calls for one digest create it once. It is pinned for the user until Release.
	FromImage(ctx context.Context, user string, img *image.Image) (*Image, error)
	// FromURL downloads tar.gz, tar.zst or an ext4 image; the content decides which. Without a
	// checksum it asks the server whether the file has changed, once for each user: a user that
	// has an image of a URL keeps it.
	FromURL(ctx context.Context, user string, r URLRequest) (*Image, error)
	// Writable creates an empty, sparse ext4 disk with a journal and the given size, at an
	// absolute path of the caller. It replaces an existing file.
	Writable(ctx context.Context, path string, bytes int64) error
	// Release removes the pins of a user. Users returns the users with pins.
	Release(user string) error
	Users() ([]string, error)
	// Collect removes images that were not used for that long.
	Collect(ctx context.Context, olderThan time.Duration) error
}
