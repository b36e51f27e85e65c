package kine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"

	"github.com/k3s-io/kine/pkg/server"
	"golang.org/x/sync/semaphore"
)

// everything is the weight with which an operation excludes all writes.
const everything = math.MaxInt32

// backend repairs what kine does differently from etcd:
//
//   - A revision is an automatic number of the database, and becomes visible when its transaction
//     ends. A list or a watch could therefore see a revision before a lower one, and would never
//     see the lower one. Here they wait for the writes that have begun.
//   - The first page of a list returned the revision of a later moment. The other pages, and the
//     watch after them, lacked the changes in between.
//   - A write that the database refused, for example because its disk is full, was reported as a
//     conflict. The API server then tries again at once, without end.
//
// A write of another server on the same database is not waited for.
type backend struct {
	server.Backend
	// writing counts the writes that have begun. The lists and watches of a database without
	// concurrent writes need not wait for it.
	writing    *semaphore.Weighted
	concurrent bool
	// written is the highest revision of a write through this backend.
	written atomic.Int64
	// size returns the size of the table. Nil means kine's own query.
	size func(context.Context) (int64, error)
}

// errRefused is the error of a write that failed although there is no conflict. kine logs the
// cause.
var errRefused = errors.New("the database did not store the change")

func newBackend(inner server.Backend, concurrent bool) *backend {
	return &backend{Backend: inner, writing: semaphore.NewWeighted(everything), concurrent: concurrent}
}

// begin waits until a write may begin. The caller calls end.
func (b *backend) begin(ctx context.Context) (end func(), err error) {
	if !b.concurrent {
		return func() {}, nil
	}
	if err := b.writing.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return func() { b.writing.Release(1) }, nil
}

// settle waits until all writes have ended that have begun. No write begins until the caller
// calls end.
func (b *backend) settle(ctx context.Context) (end func(), err error) {
	if !b.concurrent {
		return func() {}, nil
	}
	if err := b.writing.Acquire(ctx, everything); err != nil {
		return nil, err
	}
	return func() { b.writing.Release(everything) }, nil
}

// stored notes the revision of a write.
func (b *backend) stored(revision int64) {
	for {
		was := b.written.Load()
		if was >= revision || b.written.CompareAndSwap(was, revision) {
			return
		}
	}
}

// Create implements server.Backend.
func (b *backend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	end, err := b.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	revision, err := b.Backend.Create(ctx, key, value, lease)
	if err == nil {
		b.stored(revision)
	}
	return revision, err
}

// Update implements server.Backend.
func (b *backend) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	end, err := b.begin(ctx)
	if err != nil {
		return 0, nil, false, err
	}
	defer end()
	now, kv, ok, err := b.Backend.Update(ctx, key, value, revision, lease)
	return now, kv, ok, b.judge(now, kv, ok, revision, err)
}

// Delete implements server.Backend.
func (b *backend) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	end, err := b.begin(ctx)
	if err != nil {
		return 0, nil, false, err
	}
	defer end()
	now, kv, ok, err := b.Backend.Delete(ctx, key, revision)
	return now, kv, ok, b.judge(now, kv, ok, revision, err)
}

// judge returns the error of a guarded write. If the write failed, and the key still has the
// revision that the guard requires, then there was no conflict.
func (b *backend) judge(now int64, kv *server.KeyValue, ok bool, guard int64, err error) error {
	switch {
	case err != nil:
		return err
	case ok:
		b.stored(now)
	case kv != nil && guard != 0 && kv.ModRevision == guard:
		return errRefused
	}
	return nil
}

// Get implements server.Backend.
func (b *backend) Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	written := b.written.Load()
	now, kv, err := b.Backend.Get(ctx, key, revision, keysOnly)
	if errors.Is(err, server.ErrFutureRev) && b.reached(ctx, revision) {
		return max(revision, written), nil, nil
	}
	if err == nil {
		// For a missing key kine returns a revision from memory, which may be an older one.
		now = max(now, written)
	}
	return now, kv, err
}

// current returns the latest revision, below which no write will appear any more.
func (b *backend) current(ctx context.Context) (int64, error) {
	end, err := b.settle(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	now, _, err := b.Backend.Count(ctx, "a", "a", 0) // an empty range
	if err != nil {
		return 0, fmt.Errorf("reading the revision of the database: %w", err)
	}
	return now, nil
}

// List implements server.Backend. The returned revision is that of the list.
func (b *backend) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	at := revision
	if at == 0 {
		var err error
		if at, err = b.current(ctx); err != nil {
			return 0, nil, err
		}
	}
	now, list, err := b.Backend.List(ctx, key, end, limit, at, keysOnly)
	if errors.Is(err, server.ErrFutureRev) && b.reached(ctx, at) {
		return at, nil, nil
	}
	if err == nil && revision == 0 {
		now = at
	}
	return now, list, err
}

// reached reports whether the database has a revision. For an empty list kine compares with a
// revision from memory, which may be an older one, and calls the requested one a future one.
func (b *backend) reached(ctx context.Context, revision int64) bool {
	now, _, err := b.Backend.Count(ctx, "a", "a", 0)
	return err == nil && revision <= now
}

// Count implements server.Backend. The returned revision is that of the count. kine calls it for
// the number of keys that follow a page.
func (b *backend) Count(ctx context.Context, key, end string, revision int64) (int64, int64, error) {
	now, count, err := b.Backend.Count(ctx, key, end, revision)
	if err == nil && revision != 0 {
		now = revision
	}
	return now, count, err
}

// Watch implements server.Backend. kine reads the past changes before it returns.
func (b *backend) Watch(ctx context.Context, key, end string, revision int64) server.WatchResult {
	settled, err := b.settle(ctx)
	if err != nil {
		events, failed := make(chan []*server.Event), make(chan error, 1)
		close(events)
		failed <- server.ErrGRPCUnhealthy
		return server.WatchResult{Events: events, Errorc: failed}
	}
	defer settled()
	return b.Backend.Watch(ctx, key, end, revision)
}

// compacting is the number of running compactions in this process.
var compacting atomic.Int32

// errCompaction is the panic of exit.
var errCompaction = errors.New("the database ended the transaction of a compaction")

// exit replaces the end of the process. kine ends it if the connection to the database breaks
// during a compaction. That transaction is complete or not there, so the next compaction can
// continue.
func exit(code int) {
	if compacting.Load() > 0 {
		panic(errCompaction)
	}
	os.Exit(code)
}

// Compact implements server.Backend.
func (b *backend) Compact(ctx context.Context, revision int64) (now int64, err error) {
	compacting.Add(1)
	defer compacting.Add(-1)
	defer func() {
		switch r := recover(); r {
		case nil:
		case errCompaction:
			err = errCompaction
		default:
			panic(r)
		}
	}()
	return b.Backend.Compact(ctx, revision)
}

// DbSize implements server.Backend.
func (b *backend) DbSize(ctx context.Context) (int64, error) {
	if b.size != nil {
		if size, err := b.size(ctx); err == nil {
			return size, nil
		}
	}
	return b.Backend.DbSize(ctx)
}
