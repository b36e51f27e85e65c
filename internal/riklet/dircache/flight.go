package dircache

import (
	"context"
	"sync"

	"rik.dev/rik/internal/riklet/progress"
)

// Flights lets calls for one key share one run of the work.
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

// Do runs work, or waits for the run of the same key that another call began. The
// context of work ends when the last that waits for it has gone: one that gives up
// takes nothing from the others. What the work notes of its progress, all that wait report.
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

// leave is for a call that waits no longer.
func (f *Flights[T]) leave(key string, run *flight[T]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if run.waiters--; run.waiters == 0 {
		// Out of the table at once: who comes next shall not share its end.
		f.landLocked(key, run)
		run.cancel(context.Canceled)
	}
}

func (f *Flights[T]) landLocked(key string, run *flight[T]) {
	if f.byKey[key] == run {
		delete(f.byKey, key)
	}
}

// Close ends every run and waits for it.
func (f *Flights[T]) Close() {
	f.mu.Lock()
	f.closed = true
	for _, run := range f.byKey {
		run.cancel(ErrClosed)
	}
	f.mu.Unlock()
	f.running.Wait()
}
