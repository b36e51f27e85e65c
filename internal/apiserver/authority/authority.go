// Package authority opens the certificate authority in a data directory.
//
// The controller, the scheduler and the simulation of one machine use the same data directory.
// [Open] makes sure that they use the same authority. [Discard] removes an authority of a start that
// was refused. The package clusterid decides whether the directory belongs to a cluster.
package authority

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/pki"
)

// Dir is the directory of the authority in the data directory.
const Dir = "pki"

// Open loads the cluster's authority from a data directory. It creates one if the directory
// belongs to no cluster yet, or if the administrator accepts new keys. Controller and scheduler of
// one machine may start at the same time, so a lock prevents them from creating two.
func Open(dataDir string, acceptKeys bool) (*pki.Authority, error) {
	dir := filepath.Join(dataDir, Dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		if errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("%w: run as root (sudo), or choose a directory that you own with --data-dir", err)
		}
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the authority: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("locking the authority: %w", err)
	}
	if known, err := clusterid.Read(dataDir); err != nil {
		return nil, err
	} else if known != nil && !acceptKeys {
		return pki.Load(dir)
	}
	return pki.LoadOrCreate(dir)
}

// Discard removes an authority that was created for a start that was then refused. Otherwise the
// next start would use it as the authority of an existing cluster. It returns the cause of the
// refusal, joined with its own error.
func Discard(dataDir string, a *pki.Authority, cause error) error {
	if known, err := clusterid.Read(dataDir); err != nil || known != nil {
		return cause
	}
	return errors.Join(cause, a.Discard(filepath.Join(dataDir, Dir)))
}
