package dircache

import (
	"context"
	"sync"

	"rik.dev/rik/internal/riklet/progress"
)

// Flights makes calls for the same key share one run of the work.
type Flights[T any] struct {
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	byKey  map[string]*flight[T]
}

// flight is one run. Its result is written before done is closed.
type flight[T any] struct {
	done    chan struct{}
	cancel  context.CancelCauseFunc
	waiters int // under Flights.mu
	work    *progress.Work
	result  T
	err     error
}

// NewFlights returns an empty table.
func NewFlights[T any]() *Flights[T] { return &Flights[T]{byKey: map[string]*flight[T]{}} }

// Do runs work, or waits for a run with the same key that another call has started. The context
// of work ends when the last waiting call has given up, so a call that gives up does not affect
// the others. All waiting calls report the progress of work.
func (f *Flights[T]) Do(ctx context.Context, key string, work func(context.Context) (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	run, err := f.join(ctx, key, work)
	if err != nil {
		return none, err
	}
	progress.Of(ctx).Follow(run.work)
	select {
	case <-run.done:
		return run.result, run.err
	case <-ctx.Done():
		f.leave(key, run)
		return none, context.Cause(ctx)
	}
}

func (f *Flights[T]) join(ctx context.Context, key string, work func(context.Context) (T, error)) (*flight[T], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, ErrClosed
	}
	if run, ok := f.byKey[key]; ok {
		run.waiters++
		return run, nil
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	run := &flight[T]{done: make(chan struct{}), cancel: cancel, waiters: 1, work: &progress.Work{}}
	ctx = progress.With(ctx, run.work)
	f.byKey[key] = run
	f.running.Go(func() {
		defer cancel(nil)
		run.result, run.err = work(ctx)
		f.mu.Lock()
		f.landLocked(key, run)
		f.mu.Unlock()
		close(run.done)
	})
	return run, nil
}

// leave removes a call that waits no longer.
func (f *Flights[T]) leave(key string, run *flight[T]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if run.waiters--; run.waiters == 0 {
		// Remove it from the table at once, so that new calls do not share its cancellation.
		f.landLocked(key, run)
		run.cancel(context.Canceled)
	}
}

func (f *Flights[T]) landLocked(key string, run *flight[T]) {
	if f.byKey[key] == run {
		delete(f.byKey, key)
	}
}

// Close cancels every run and waits for its end.
func (f *Flights[T]) Close() {
	f.mu.Lock()
	f.closed = true
	for _, run := range f.byKey {
		run.cancel(ErrClosed)
	}
	f.mu.Unlock()
	f.running.Wait()
}
