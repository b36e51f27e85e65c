package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		wait     time.Duration
		cancelAt time.Duration // zero: before the call; negative: never
		want     bool
		took     time.Duration
	}{
		{"the time passes", time.Minute, -1, true, time.Minute},
		{"no time", 0, -1, true, 0},
		{"a negative time", -time.Second, -1, true, 0},
		{"ctx ends first", time.Hour, time.Second, false, time.Second},
		{"ctx has ended", time.Hour, 0, false, 0},
		{"ctx has ended, and there is no time", 0, 0, false, 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				switch {
				case tc.cancelAt == 0:
					cancel()
				case tc.cancelAt > 0:
					time.AfterFunc(tc.cancelAt, cancel)
				}
				begun := time.Now()
				if got := For(ctx, tc.wait); got != tc.want {
					t.Errorf("For(%v) = %v, want %v", tc.wait, got, tc.want)
				}
				if took := time.Since(begun); took != tc.took {
					t.Errorf("For(%v) took %v, want %v", tc.wait, took, tc.took)
				}
			})
		})
	}
}

func TestForOr(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		early := make(chan struct{}, 1)
		begun := time.Now()
		early <- struct{}{}
		if !ForOr(t.Context(), time.Hour, early) {
			t.Error("ForOr() = false, want true after a signal")
		}
		time.AfterFunc(time.Second, func() { early <- struct{}{} })
		if !ForOr(t.Context(), time.Hour, early) {
			t.Error("ForOr() = false, want true after a later signal")
		}
		if took := time.Since(begun); took != time.Second {
			t.Errorf("ForOr() took %v, want 1s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		early <- struct{}{}
		if ForOr(ctx, time.Hour, early) {
			t.Error("ForOr() = true with a signal and an ended context, want false")
		}
	})
}
