// Package flight lets calls that need the same long work share one run of it, such as a pull or
// a download.
//
// golang.org/x/sync/singleflight does less. Here a call gives up when its context ends, and the
// work is canceled when the last call has given up. Close ends all work. All calls report the
// progress of the work.
package flight

import (
	"context"
	"sync"

	"rik.dev/rik/internal/riklet/progress"
)

// Group makes calls for the same key share one run of the work. Create it with New.
type Group[K comparable, T any] struct {
	errClosed error
	running   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	byKey  map[K]*run[T]
}

// run is one run. Its result is written before done is closed.
type run[T any] struct {
	done    chan struct{}
	cancel  context.CancelCauseFunc
	waiters int // under Group.mu
	work    *progress.Work
	result  T
	err     error
}

// New returns a group without runs. Calls after Close fail with errClosed.
func New[K comparable, T any](errClosed error) *Group[K, T] {
	return &Group[K, T]{errClosed: errClosed, byKey: map[K]*run[T]{}}
}

// Do runs work, or waits for a run with the same key that another call has started. The context
// of work ends when the last waiting call has given up, so a call that gives up does not affect
// the others. All waiting calls report the progress that work notes in its context.
func (g *Group[K, T]) Do(ctx context.Context, key K, work func(context.Context) (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	r, err := g.join(ctx, key, work)
	if err != nil {
		return none, err
	}
	progress.Of(ctx).Follow(r.work)
	select {
	case <-r.done:
		return r.result, r.err
	case <-ctx.Done():
		g.leave(key, r)
		return none, context.Cause(ctx)
	}
}

func (g *Group[K, T]) join(ctx context.Context, key K, work func(context.Context) (T, error)) (*run[T], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, g.errClosed
	}
	if r, ok := g.byKey[key]; ok {
		r.waiters++
		return r, nil
	}
	// The work must not end with the first call, because others may wait for it.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r := &run[T]{done: make(chan struct{}), cancel: cancel, waiters: 1, work: &progress.Work{}}
	ctx = progress.With(ctx, r.work)
	g.byKey[key] = r
	g.running.Go(func() {
		defer cancel(nil)
		r.result, r.err = work(ctx)
		g.mu.Lock()
		g.landLocked(key, r)
		g.mu.Unlock()
		close(r.done)
	})
	return r, nil
}

// leave removes a call that waits no longer.
func (g *Group[K, T]) leave(key K, r *run[T]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.waiters--; r.waiters == 0 {
		// Remove it from the table at once, so that new calls do not share its cancellation.
		g.landLocked(key, r)
		r.cancel(context.Canceled)
	}
}

func (g *Group[K, T]) landLocked(key K, r *run[T]) {
	if g.byKey[key] == r {
		delete(g.byKey, key)
	}
}

// Waiters returns the number of calls that wait for the run with the key.
func (g *Group[K, T]) Waiters(key K) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r, ok := g.byKey[key]; ok {
		return r.waiters
	}
	return 0
}

// Close cancels every run with errClosed. It waits until all work has ended, also the work of
// canceled runs.
func (g *Group[K, T]) Close() {
	g.mu.Lock()
	g.closed = true
	for _, r := range g.byKey {
		r.cancel(g.errClosed)
	}
	g.mu.Unlock()
	g.running.Wait()
}
