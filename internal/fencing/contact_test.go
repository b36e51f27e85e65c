package fencing_test

import (
	"testing"
	"time"

	"rik.dev/rik/internal/fencing"
)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

// TestMayRenew tests one syncer over time.
func TestMayRenew(t *testing.T) {
	t.Parallel()
	r := fencing.Renewals{Trust: 15 * time.Second}
	may := func(seconds float64, want bool, when string) {
		t.Helper()
		if got := r.Contact(at(seconds)); (got == fencing.Settled) != want {
			t.Errorf("%s: the contact is %v, want a challenge to be answered: %v", when, got, want)
		}
	}
	may(0, false, "at the start")
	r.Settle(at(0))
	may(0, false, "settled before a heartbeat was accepted")
	r.Beaten(at(1), at(2), false)
	may(2, false, "in touch, and not settled")
	r.Settle(at(1.5))
	may(2, false, "a look that began before the answer came")
	r.Settle(at(2))
	may(2, true, "in touch and settled")
	may(15.9, true, "just before the trust ends")
	may(16, false, "when the trust ends")
	r.Beaten(at(15), at(15.5), false)
	may(29, true, "after the next heartbeat")
	if r.Contact(at(29)) == fencing.Settling {
		t.Error("it has to settle without an interruption")
	}
	r.Beaten(at(40), at(40.5), false)
	may(41, false, "after a gap")
	if r.Contact(at(41)) != fencing.Settling {
		t.Error("it has not to settle after a gap")
	}
	r.Settle(at(41))
	may(41, true, "settled after a gap")
	r.Beaten(at(45), at(45.5), true)
	may(46, false, "called silent")
	r.Beaten(at(47), at(47.5), false)
	may(48, false, "no longer called silent")
	r.Settle(at(48))
	may(48, true, "settled again")
	r.Beaten(at(30), at(49), false)
	may(61.9, true, "an older heartbeat takes nothing back")
	r.Cut()
	may(50, false, "cut")
}

func TestPace(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		shortest     time.Duration
		acknowledged bool
		running      time.Duration
		want         time.Duration
	}{
		{10 * time.Second, true, time.Hour, time.Second},
		{30 * time.Second, false, 0, 3 * time.Second},
		{time.Hour, true, time.Hour, fencing.LongestPace},
		{time.Millisecond, true, time.Hour, time.Second},
		{0, false, 0, time.Second},
		{0, true, 0, fencing.LongestPace},
		{0, false, time.Minute, fencing.LongestPace},
	} {
		if got := fencing.Pace(tc.shortest, tc.acknowledged, tc.running); got != tc.want {
			t.Errorf("Pace(%v, %v, %v) = %v, want %v", tc.shortest, tc.acknowledged, tc.running, got, tc.want)
		}
	}
}

// TestAcknowledgement tests what the syncer reports about a cluster.
func TestAcknowledgement(t *testing.T) {
	t.Parallel()
	type step struct {
		seconds float64
		do      func(*fencing.Acknowledgement, time.Time)
		want    fencing.Enforcement
	}
	see := func(challenge string) func(*fencing.Acknowledgement, time.Time) {
		return func(a *fencing.Acknowledgement, now time.Time) { a.Observe(challenge, now) }
	}
	answer := func(a *fencing.Acknowledgement, _ time.Time) { a.Answered() }
	fail := func(a *fencing.Acknowledgement, now time.Time) { a.Failed(now) }
	behind := func(a *fencing.Acknowledgement, now time.Time) { a.Behind(true, now) }
	for name, steps := range map[string][]step{
		"another client sets challenges": {
			{0, see("a"), fencing.Undecided}, {1, answer, fencing.Undecided}, {2, see("b"), fencing.Fences},
			// the syncer did not answer, so no new challenge is due
			{1000, see("b"), fencing.Fences},
		},
		"an old cluster": {
			{0, see(""), fencing.Undecided}, {29, see(""), fencing.Undecided}, {31, see(""), fencing.NotAcknowledged},
		},
		"a dead controller": {
			{0, see("a"), fencing.Undecided}, {1, answer, fencing.Undecided}, {2, see("b"), fencing.Fences}, {3, answer, fencing.Fences},
			{4, see("b"), fencing.Fences}, {20, see("b"), fencing.Fences}, {35, see("b"), fencing.NotAcknowledged}, {36, see("c"), fencing.Fences},
		},
		"a syncer that stood still": {
			{0, see("a"), fencing.Undecided}, {1, answer, fencing.Undecided}, {2, see("b"), fencing.Fences}, {3, answer, fencing.Fences},
			{1000, see("b"), fencing.Fences}, {1001, see("c"), fencing.Fences},
		},
		"a lease that cannot be had": {
			{0, see("a"), fencing.Undecided}, {2, see("b"), fencing.Fences},
			{3, fail, fencing.Fences}, {20, fail, fencing.Fences}, {34, fail, fencing.Unreachable}, {35, see("b"), fencing.Fences},
		},
		"a cluster that cannot be brought to what the kcp wants": {
			{0, see("a"), fencing.Undecided}, {2, see("b"), fencing.Fences}, {3, behind, fencing.Fences}, {20, behind, fencing.Fences}, {34, behind, fencing.Stuck},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var a fencing.Acknowledgement
			for i, s := range steps {
				s.do(&a, at(s.seconds))
				if got := a.Enforcement(at(s.seconds), at(s.seconds).Sub(start)); got != s.want {
					t.Errorf("step %d, after %v s: the enforcement is %d, want %d", i, s.seconds, got, s.want)
				}
			}
		})
	}
}
