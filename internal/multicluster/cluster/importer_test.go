package cluster

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestTypesThatAlwaysChange tests a cluster that changes its types every 100 ms. After the first
// times, it is read at most once in pullInterval. The state is reported for as long as it lasts.
func TestTypesThatAlwaysChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const storm = 10 * time.Minute
		i := &importer{logger: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1)}
		changes := make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var mu sync.Mutex
		var rounds, reported int
		last := time.Now()
		go i.rounds(ctx, changes, func(context.Context) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			rounds++
			last = time.Now()
			if i.changing {
				reported++
			}
			return time.Minute
		})
		for began := time.Now(); time.Since(began) < storm; time.Sleep(100 * time.Millisecond) {
			select {
			case changes <- struct{}{}:
			default: // as the puller does: one signal is already waiting
			}
		}
		synctest.Wait()
		mu.Lock()
		most := 1 + pullBurst + int(storm/pullInterval)
		if rounds > most || rounds < most/2 {
			t.Errorf("%d rounds in %v, want at most %d", rounds, storm, most)
		}
		if reported < rounds-pullBurst-1 {
			t.Errorf("%d of %d rounds report that the types change", reported, rounds)
		}
		if time.Since(last) > pullInterval+settle {
			t.Errorf("the last round was %v ago", time.Since(last))
		}
		mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if i.changing {
			t.Error("they do not change any more, and it is still said")
		}
	})
}
