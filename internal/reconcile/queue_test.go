package reconcile_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"rik.dev/rik/internal/reconcile"
)

var quiet = slog.New(slog.DiscardHandler)

// run starts a queue in a bubble and returns the function that stops it.
func run(t *testing.T, q *reconcile.Queue[string]) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		synctest.Wait()
	}
}

func TestQueueCoalescesAndNeverOverlapsAKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var passes, running atomic.Int32
		q := reconcile.New(reconcile.Options{Workers: 8, Logger: quiet}, func(context.Context, string) (time.Duration, error) {
			if running.Add(1) > 1 {
				t.Error("two passes over one key at once")
			}
			defer running.Add(-1)
			passes.Add(1)
			time.Sleep(time.Second)
			return 0, nil
		})
		for range 100 {
			q.Add("a")
		}
		stop := run(t, q)
		synctest.Wait()
		for range 100 {
			q.Add("a")
		}
		time.Sleep(10 * time.Second)
		if got := passes.Load(); got != 2 {
			t.Errorf("%d passes, want 2: one before and one after the change", got)
		}
		stop()
	})
}

func TestQueueBacksOffAndRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Duration
		begin := time.Now()
		q := reconcile.New(reconcile.Options{MinBackoff: time.Second, MaxBackoff: 4 * time.Second, Logger: quiet},
			func(_ context.Context, key string) (time.Duration, error) {
				if key == "good" {
					return 0, nil
				}
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Since(begin))
				switch len(at) {
				case 1:
					return 0, errors.New("boom")
				case 2:
					panic("boom")
				case 3:
					return 0, reconcile.ErrAgain
				case 4:
					return time.Minute, nil
				}
				return 0, nil
			})
		stop := run(t, q)
		q.Add("bad")
		q.Add("good")
		time.Sleep(2 * time.Minute)
		mu.Lock()
		want := []time.Duration{0, 1 * time.Second, 3 * time.Second, 7 * time.Second, 67 * time.Second}
		if len(at) != len(want) {
			t.Fatalf("passes at %v, want %v", at, want)
		}
		for i := range want {
			if at[i] != want[i] {
				t.Errorf("pass %d at %v, want %v", i, at[i], want[i])
			}
		}
		mu.Unlock()
		stop()
	})
}

func TestQueueStopsWithWorkLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := reconcile.New(reconcile.Options{Logger: quiet}, func(ctx context.Context, _ string) (time.Duration, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
		for _, k := range []string{"a", "b", "c"} {
			q.Add(k)
		}
		stop := run(t, q)
		synctest.Wait()
		stop()
		q.Add("late")
	})
}

func TestSoonest(t *testing.T) {
	t.Parallel()
	if got := reconcile.Soonest(0, 3*time.Second, 0, time.Second, 2*time.Second); got != time.Second {
		t.Errorf("Soonest = %v, want the shortest that is not 0", got)
	}
	if got := reconcile.Soonest(0, 0); got != 0 {
		t.Errorf("Soonest of none = %v", got)
	}
}
