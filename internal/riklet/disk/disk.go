// Package disk makes the block images that microVMs start from: an image's files as
// one ext4 file system, made once and shared read-only by all that use it, and a
// writable disk for each instance.
package disk

import (
	"context"
	"errors"
	"time"

	"rik.dev/rik/internal/riklet/image"
)

var (
	// ErrRefused is returned for content that is malformed or lies about itself.
	ErrRefused = errors.New("the root file system is refused")
	// ErrTooLarge is returned when a limit on bytes or entries was reached.
	ErrTooLarge = errors.New("the root file system is too large")
	// ErrDigest is returned when content is not what its checksum says.
	ErrDigest = errors.New("the root file system has another checksum")
	// ErrNoSpace is returned when the file system of the store is full, up to what
	// must stay free. Nothing is left of what was begun.
	ErrNoSpace = errors.New("no space left for block images")
	// ErrNoTools is returned when the node lacks the programs that make file systems.
	ErrNoTools = errors.New("a program is missing")
)

// Image is a read-only ext4 image in the store. It stays as long as it is pinned.
type Image struct {
	// Digest identifies the content: of the OCI image's manifest, or of the download.
	Digest string
	// Path of the file, 0444 and root's, below the riklet's own directory, which other
	// users cannot enter: Lend shows it to one of them.
	Path  string
	Bytes int64
	// Config is what an OCI image says about its start; empty for a URL's.
	Config ImageConfig
}

// ImageConfig is the part of an OCI image's configuration that a process needs.
type ImageConfig struct {
	Entrypoint, Cmd, Env []string
	WorkingDir, User     string
	StopSignal           string
}

// URLRequest asks for a root file system by URL.
type URLRequest struct {
	// URL is https, or http when the store allows it; or a path when AllowPath.
	URL string
	// SHA256 in hex of what the URL gives; empty: not checked.
	SHA256 string
}

// Store is the block images of a node. All its methods may be called at once.
type Store interface {
	// FromImage gives the block image of a pulled OCI image, made on first use. Two
	// calls for one digest make it once. It is pinned for the user until Release.
	FromImage(ctx context.Context, user string, img *image.Image) (*Image, error)
	// FromURL downloads tar.gz, tar.zst or an ext4 image: told apart by content. Without
	// a checksum the server is asked whether it has changed, once for each user: who has
	// an image of a URL keeps it.
	FromURL(ctx context.Context, user string, r URLRequest) (*Image, error)
	// Writable makes an empty, sparse ext4 disk with room for so many bytes and a journal, at
	// an absolute path of the caller's. It replaces a file that is there.
	Writable(ctx context.Context, path string, bytes int64) error
	// Release lets go of what a user pinned; Users lists those that have anything.
	Release(user string) error
	Users() ([]string, error)
	// Collect removes what nobody has used for so long.
	Collect(ctx context.Context, olderThan time.Duration) error
}
