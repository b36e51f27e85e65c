package flight

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"rik.dev/rik/internal/riklet/progress"
)

var errClosed = errors.New("closed")

// outcome is what a call of Do returned.
type outcome struct {
	value string
	err   error
}

// call starts Do in a goroutine.
func call(ctx context.Context, g *Group[string, string], key string, work func(context.Context) (string, error)) <-chan outcome {
	result := make(chan outcome, 1)
	go func() {
		value, err := g.Do(ctx, key, work)
		result <- outcome{value, err}
	}()
	return result
}

func TestCallsShareOneRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New[string, string](errClosed)
		defer g.Close()
		var runs atomic.Int32
		proceed := make(chan struct{})
		work := func(ctx context.Context) (string, error) {
			runs.Add(1)
			progress.Of(ctx).Begin(progress.Progress{What: "working"})
			<-proceed
			return "done", nil
		}
		var calls []<-chan outcome
		var works []*progress.Work
		for range 3 {
			w := &progress.Work{}
			works = append(works, w)
			calls = append(calls, call(progress.With(t.Context(), w), g, "k", work))
		}
		other := call(t.Context(), g, "other", work)
		synctest.Wait()
		if got := g.Waiters("k"); got != 3 {
			t.Errorf("Waiters() = %d, want 3", got)
		}
		for _, w := range works {
			if got := w.Progress().What; got != "working" {
				t.Errorf("the progress of a call is %q, want that of the shared run", got)
			}
		}
		close(proceed)
		for _, c := range append(calls, other) {
			if got := <-c; got != (outcome{"done", nil}) {
				t.Errorf("Do() = %v, want the result of the run", got)
			}
		}
		if got := runs.Load(); got != 2 {
			t.Errorf("the work ran %d times, want once for each key", got)
		}
		if got := g.Waiters("k"); got != 0 {
			t.Errorf("Waiters() = %d after the run, want 0", got)
		}
	})
}

func TestLastCallCancelsTheRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New[string, string](errClosed)
		defer g.Close()
		canceled := make(chan struct{})
		work := func(ctx context.Context) (string, error) {
			<-ctx.Done()
			close(canceled)
			return "", context.Cause(ctx)
		}
		why := errors.New("not needed")
		first, cancelFirst := context.WithCancelCause(t.Context())
		second, cancelSecond := context.WithCancelCause(t.Context())
		one, two := call(first, g, "k", work), call(second, g, "k", work)
		synctest.Wait()
		cancelFirst(why)
		if got := <-one; !errors.Is(got.err, why) {
			t.Errorf("Do() = %v, want the cause of its context", got)
		}
		synctest.Wait()
		select {
		case <-canceled:
			t.Error("the run ended with the first call, and another one waits")
		default:
		}
		cancelSecond(why)
		<-two
		<-canceled
		// A new call starts a new run.
		if got := <-call(t.Context(), g, "k", func(context.Context) (string, error) { return "new", nil }); got.value != "new" {
			t.Errorf("Do() after a canceled run = %v, want a new run", got)
		}
		if _, err := g.Do(first, "k", work); !errors.Is(err, why) {
			t.Errorf("Do() with an ended context = %v, want its cause", err)
		}
	})
}

func TestCloseEndsRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New[string, string](errClosed)
		var ended atomic.Bool
		running := call(t.Context(), g, "k", func(ctx context.Context) (string, error) {
			<-ctx.Done()
			ended.Store(true)
			return "", context.Cause(ctx)
		})
		synctest.Wait()
		g.Close()
		if !ended.Load() {
			t.Error("Close() returned before the work")
		}
		if got := <-running; !errors.Is(got.err, errClosed) {
			t.Errorf("Do() = %v, want %v", got, errClosed)
		}
		if _, err := g.Do(t.Context(), "k", nil); !errors.Is(err, errClosed) {
			t.Errorf("Do() after Close = %v, want %v", err, errClosed)
		}
		g.Close()
	})
}
