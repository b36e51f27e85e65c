package datastore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"rik.dev/rik/internal/apiserver/datastore/etcd"
)

// ErrNotRunning is returned by Reclaim if no server has the datastore of the directory open.
var ErrNotRunning = errors.New("no server runs with an embedded datastore in this directory")

// Reclaimed is the result of Reclaim, in bytes.
type Reclaimed = etcd.Reclaimed

// Reclaim returns the free space of a running server's embedded etcd to the disk: it removes all
// old revisions, defragments, and clears the alarm of a full quota if there is space again. dir is
// Config.Dir of that server. Requests to the server wait meanwhile, and its older watches begin
// again. It may be repeated. A SQL datastore needs none of this, and fails.
func Reclaim(ctx context.Context, dir string) (Reclaimed, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Reclaimed{}, err
	}
	socket := filepath.Join(abs, "run", longestSocketName)
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return Reclaimed{}, fmt.Errorf("%w: %s does not exist", ErrNotRunning, socket)
	} else if err != nil {
		return Reclaimed{}, fmt.Errorf("looking for the running datastore: %w", err)
	}
	return etcd.Reclaim(ctx, "unix://"+socket)
}
