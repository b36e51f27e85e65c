// Package archive fetches the files of Apps. They come from an archive, which is downloaded and
// unpacked once for all instances, or from a directory of the node.
package archive

import (
	"context"
	"errors"
	"time"
)

var (
	// ErrRefused is returned for a URL, a path or an archive that is not allowed.
	ErrRefused = errors.New("the repository is refused")
	// ErrTooLarge is returned if the repository exceeds a limit on bytes or entries.
	ErrTooLarge = errors.New("the repository is too large")
	// ErrNotFound is returned if the repository does not have the version.
	ErrNotFound = errors.New("the repository does not have this version")
)

// Request names the files of an App.
type Request struct {
	// Repo is an https URL of a .tar.gz, .tar.zst or .zip file, or an absolute path of the node: a
	// directory or an archive. In a URL or path, {version} stands for the version.
	Repo    string
	Version string
}

// Tree is an unpacked repository. The root directory belongs to root and is readable by all users.
type Tree struct {
	Dir    string
	Digest string // of the archive; empty for a directory of the node
}

// Store is the cache of unpacked archives on a node. Its methods are safe for concurrent use.
type Store interface {
	// Get returns the files and pins them for the user until Release. A user that already has files
	// of an archive keeps them: Get does not download a newer archive.
	Get(ctx context.Context, user string, r Request) (*Tree, error)
	Release(user string) error
	Users() ([]string, error)
	Collect(ctx context.Context, olderThan time.Duration) error
}
