package fencing_test

import (
	"testing"
	"time"

	"rik.dev/rik/internal/fencing"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TestLease follows one Lease through the answers of a syncer and two controllers.
func TestLease(t *testing.T) {
	t.Parallel()
	const after = 30 * time.Second
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	var l fencing.Lease
	stops := func() time.Time { return fencing.ControllerStops(l.Proven(), after) }
	if !stops().IsZero() {
		t.Errorf("without a proof the fence closes at %v, want at once", stops())
	}
	if !l.Observe("", "", at(0)) {
		t.Error("a new Lease needs no challenge")
	}
	first := l.Issue(at(1), "a")
	if l.Observe(first, "", at(2)) {
		t.Error("a challenge that waits for its answer is to be replaced")
	}
	if !l.Observe(first, first, at(9)) {
		t.Error("an answer needs no new challenge")
	}
	// The time when the challenge was set counts, and not the time of the answer.
	if want := at(1 + 15); !stops().Equal(want) {
		t.Errorf("the fence closes at %v, want %v", stops(), want)
	}
	second := l.Issue(at(10), "b")
	l.Observe(second, second, at(11))
	l.Observe(second, first, at(12)) // a delayed write
	if want := at(10 + 15); !stops().Equal(want) {
		t.Errorf("after a delayed answer the fence closes at %v, want %v", stops(), want)
	}

	t.Run("a controller that starts again goes by the stamps", func(t *testing.T) {
		t.Parallel()
		var next fencing.Lease
		if !next.Observe(second, first, at(12)) {
			t.Error("the challenge of another controller is not replaced")
		}
		if age, proven := next.Age(at(12)); !proven || age != 11*time.Second {
			t.Errorf("the last proof is %v old (%v), want 11s", age, proven)
		}
	})
	t.Run("a clock that was set back proves nothing", func(t *testing.T) {
		t.Parallel()
		var next fencing.Lease
		next.Observe(second, second, at(9))
		if age, proven := next.Age(at(9)); proven {
			t.Errorf("a stamp from the future is a proof, %v old", age)
		}
	})
	t.Run("what is no challenge proves nothing", func(t *testing.T) {
		t.Parallel()
		for _, answer := range []string{"", "x", "2026 x", " "} {
			var next fencing.Lease
			next.Observe("", answer, at(100))
			if _, proven := next.Age(at(100)); proven {
				t.Errorf("the answer %q is a proof", answer)
			}
		}
	})
}
