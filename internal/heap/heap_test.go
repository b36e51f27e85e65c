package heap

import (
	"context"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		percent func(uint64) int
		want    map[uint64]int
	}{
		"server": {serverPercent, map[uint64]int{
			0: smallPercent, smallHeap: smallPercent, smallHeap + 1: middlePercent, middleHeap: middlePercent, middleHeap + 1: largePercent, 4 << 30: largePercent,
		}},
		"kcp": {kcpPercent, map[uint64]int{
			0: smallPercent, smallHeap: smallPercent, smallHeap + 1: middlePercent, 4 << 30: middlePercent,
		}},
	} {
		for live, want := range tc.want {
			if got := tc.percent(live); got != want {
				t.Errorf("%s: at %d bytes %d %%, want %d", name, live, got, want)
			}
		}
	}
}

// TestIdle checks that memory is returned after it was free in every sample for long, and not
// again soon after.
func TestIdle(t *testing.T) {
	t.Parallel()
	var i idle
	now := time.Unix(1, 0)
	var returns []time.Duration
	for n := range 400 {
		at := time.Duration(n) * tuneInterval
		isMuch := n != 10 && n < 300
		if i.look(isMuch, now.Add(at)) {
			returns = append(returns, at)
		}
	}
	first := (10 + idleLooks) * tuneInterval
	want := []time.Duration{first, first + returnInterval, first + 2*returnInterval}
	if len(returns) != len(want) {
		t.Fatalf("given back at %v, want %v", returns, want)
	}
	for n := range want {
		if returns[n] != want[n] {
			t.Errorf("given back at %v, want %v", returns[n], want[n])
		}
	}
}

// TestTheUserGoesFirst checks that Tune respects the user's settings of the collector.
func TestTheUserGoesFirst(t *testing.T) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOGC", "")
			t.Setenv("GOMEMLIMIT", "")
			t.Setenv(name, "1000MiB")
			before := debug.SetGCPercent(77)
			defer debug.SetGCPercent(before)
			Tune(context.Background(), KCP()) // would not return if it did anything
			if got := debug.SetGCPercent(77); got != 77 {
				t.Errorf("the collector is set to %d", got)
			}
		})
	}
}
