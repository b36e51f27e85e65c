package datastore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rik.dev/rik/internal/apiserver/datastore/kine"
)

// These methods are the same for each kind of datastore, because each has the etcd API. They
// are safe for concurrent use, and must not be called after Close. Their errors name the
// operation, and never contain an address or a password of a database.

// healthKey is read to test the datastore. It need not exist.
const healthKey = "/rik.dev/cluster"

// Size is how much a datastore stores, in bytes.
type Size struct {
	// Stored is the size of the files, or of the table and its indexes. For an etcd cluster it is
	// that of the largest member.
	Stored int64
	// InUse is the part of Stored that contains objects and their old revisions. The rest is free
	// and will be used again.
	InUse int64
	// Quota is the limit of Stored above which nothing is stored any more. Zero means that the
	// datastore has no limit of its own.
	Quota int64
}

// Healthy returns nil if the datastore answers a read that only a quorum of an etcd cluster, or
// the database itself, can answer. It does not test whether anything can be stored; see Space.
// It waits until ctx ends.
func (d *Datastore) Healthy(ctx context.Context) error {
	if _, err := d.client.Get(ctx, healthKey, clientv3.WithKeysOnly()); err != nil {
		return fmt.Errorf("reading from the datastore: %w", err)
	}
	return nil
}

// Size returns the current size. For an etcd cluster, one member that answers is enough.
func (d *Datastore) Size(ctx context.Context) (Size, error) {
	var largest Size
	var problems []error
	answered := false
	for _, server := range d.endpoint.Servers {
		status, err := d.client.Status(ctx, server)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		answered = true
		largest.Stored = max(largest.Stored, status.DbSize)
		largest.InUse = max(largest.InUse, status.DbSizeInUse)
		largest.Quota = max(largest.Quota, status.DbSizeQuota)
	}
	if !answered {
		return Size{}, fmt.Errorf("reading the size of the datastore: %w", errors.Join(problems...))
	}
	if largest.InUse == 0 { // a SQL database reports only one size
		largest.InUse = largest.Stored
	}
	if len(d.files) > 0 {
		largest.Stored = 0
	}
	for _, file := range d.files {
		if info, err := os.Stat(file); err == nil { // the log may not exist yet
			largest.Stored += info.Size()
		}
	}
	return largest, nil
}

// Revision returns the latest revision.
func (d *Datastore) Revision(ctx context.Context) (int64, error) {
	now, err := d.client.Get(ctx, "\x00", clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("reading the revision of the datastore: %w", err)
	}
	return now.Header.Revision, nil
}

// Compact removes the revisions of each key below the given one that a later one replaced. After
// that, lists and watches from an older revision fail, which the API server reports as 410. SQL
// datastores always keep the latest 1,000 revisions. Compacting to a revision that is compacted
// already is no error. The API server calls this every five minutes by itself.
func (d *Datastore) Compact(ctx context.Context, revision int64) error {
	_, err := d.client.Compact(ctx, revision, clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compacting the datastore to revision %d: %w", revision, err)
	}
	// kine answers before it knows the result.
	compacted, err := d.Compacted(ctx)
	if err != nil {
		return err
	}
	now, err := d.Revision(ctx)
	if err != nil {
		return err
	}
	if want := min(revision, now-kine.KeptRevisions); compacted < want {
		return fmt.Errorf("%w: it has the revisions since %d, and was asked to keep those since %d", ErrNotCompacted, compacted, want)
	}
	return nil
}

// ErrNotCompacted is returned by Compact if the datastore kept old revisions without an error of
// its own. Its log has the cause.
var ErrNotCompacted = errors.New("the datastore did not compact")

// compactedTimeout bounds the wait for the response to a watch from the first revision. etcd
// looks for such watches ten times a second.
const compactedTimeout = 30 * time.Second

// Compacted returns the revision up to which the datastore was compacted: a list or watch from
// an earlier one fails. It is 0 if the datastore was never compacted.
func (d *Datastore) Compacted(ctx context.Context) (int64, error) {
	// The etcd API reports the revision only to a watch that starts too early.
	_, err := d.client.Get(ctx, healthKey, clientv3.WithKeysOnly(), clientv3.WithRev(1))
	if err == nil {
		return 0, nil
	}
	if !errors.Is(err, rpctypes.ErrCompacted) {
		return 0, fmt.Errorf("reading the oldest revision of the datastore: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, compactedTimeout, fmt.Errorf("no answer in %s", compactedTimeout))
	defer cancel()
	// A watch without events: nothing is stored under this key.
	for answer := range d.client.Watch(ctx, "/rik.dev/compacted", clientv3.WithRev(1)) {
		if answer.CompactRevision != 0 {
			return answer.CompactRevision, nil
		}
		if err := answer.Err(); err != nil {
			return 0, fmt.Errorf("reading the compacted revision of the datastore: %w", err)
		}
	}
	return 0, fmt.Errorf("reading the compacted revision of the datastore: %w", context.Cause(ctx))
}
