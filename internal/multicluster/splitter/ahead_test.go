package splitter

import (
	"testing"
	"time"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// TestFutureTimesAreIgnored tests that a time which was written while the clock was ahead
// does not delay anything.
func TestFutureTimesAreIgnored(t *testing.T) {
	t.Parallel()
	ahead := start.Add(365 * 24 * time.Hour)
	st := &State{Now: start, Policy: Policy{interval: time.Minute, moves: 1}, Progress: Progress{Since: ahead, Moves: 1}}
	if p := st.moved(); p.Moves != 0 {
		t.Errorf("%d moves count in an interval to come, want none", p.Moves)
	}
	refused := &site{leaf: &Leaf{RefusedAt: ahead}}
	st.Policy.divide = workloadv1alpha1.DivideReplicas
	if refused.checkRefusal(st); refused.refused {
		t.Error("a refusal to come keeps the share away")
	}
	gone := &site{leaf: &Leaf{Replicas: 2, LostAt: ahead}}
	gone.check(st)
	if !gone.fence.IsZero() {
		t.Errorf("the fence of a removed cluster ends at %s, want it to count from when it is noted anew", gone.fence)
	}
}
