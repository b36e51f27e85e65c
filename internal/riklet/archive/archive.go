// Package archive fetches the files of Apps: an archive by https, unpacked once for
// all instances, or a directory of the node as it is.
package archive

import (
	"context"
	"errors"
	"time"
)

var (
	// ErrRefused is returned for a URL, a path or an archive that must not be used.
	ErrRefused = errors.New("the repository is refused")
	// ErrTooLarge is returned when a limit on bytes or entries was reached.
	ErrTooLarge = errors.New("the repository is too large")
	// ErrNotFound is returned for a version that the repository does not have.
	ErrNotFound = errors.New("the repository does not have this version")
)

// Request names the files of an App.
type Request struct {
	// Repo is an https URL of a .tar.gz, .tar.zst or .zip, in which {version} stands
	// for the version, or an absolute path of the node: a directory or an archive.
	Repo    string
	Version string
}

// Tree is an unpacked repository. The root belongs to root and is readable by all.
type Tree struct {
	Dir    string
	Digest string // of the archive; empty for a directory of the node
}

// Store is the archives of a node. All its methods may be called at once.
type Store interface {
	// Get gives the files, pinned for the user until Release. A user that has an
	// archive's files keeps them: it is not asked for again.
	Get(ctx context.Context, user string, r Request) (*Tree, error)
	Release(user string) error
	Users() ([]string, error)
	Collect(ctx context.Context, olderThan time.Duration) error
}
