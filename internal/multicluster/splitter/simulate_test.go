package splitter

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestSimulationMatchesSimulatedClusters compares a simulation with a random clusterSim. In that
// one, clusters receive changes late, start and stop their replicas one after another, and
// report late. The splitter stops between any two writes.
func TestSimulationMatchesSimulatedClusters(t *testing.T) {
	t.Parallel()
	policies := drawPolicies(t, 6, nil)
	for i := range cases(100_000) {
		d := newRandom(6, i)
		st := drawState(d, policies)
		// A deleted leaf whose cluster was removed is gone at once.
		st.Leaves = slices.DeleteFunc(st.Leaves, func(l Leaf) bool { return l.Deleting && st.clusterOf(l.Cluster) == nil })
		calm := i%2 == 0
		if calm {
			runLeaves(st.Leaves)
		}
		before := slices.Clone(st.Leaves)
		r := Simulate(st)
		if !slices.Equal(st.Leaves, before) {
			t.Fatalf("case %d: the state was changed: %v, then %v", i, before, st.Leaves)
		}
		if !r.AtRest {
			t.Fatalf("case %d: no rest: %+v\n%s", i, st, r.Last.Explanation)
		}
		w := clusterSimOf(st)
		w.live(t, d, calm)
		if diff := cmp.Diff(shares(r.Last), shares(w.last)); diff != "" {
			t.Fatalf("case %d: %+v\nrehearsed %s\nwhat happened %s\n(-simulated +happened):\n%s",
				i, st, r.Last.Explanation, w.last.Explanation, diff)
		}
		if left := short(r); left != "" && len(clusterSimOf(st).cut) == 0 {
			t.Fatalf("case %d: all clusters answer, and %s at rest: %+v\n%s", i, left, st, r.Last.Explanation)
		}
		if w.last.Unplaced != r.Last.Unplaced {
			t.Fatalf("case %d: %d are unplaced, simulated %d", i, w.last.Unplaced, r.Last.Unplaced)
		}
	}
}

// runLeaves lets the clusters run exactly what their leaves ask for.
func runLeaves(leaves []Leaf) {
	for i := range leaves {
		l := &leaves[i]
		l.Running, l.Ready, l.AtMost, l.Settled = l.Replicas, l.Replicas, l.Replicas, true
	}
}

// shares returns the final share of each cluster, and how many replicas wait for clusters that do
// not answer. Which cluster has less than its share in the meantime depends on the order of
// events.
func shares(r Result) map[string]int32 {
	out := map[string]int32{}
	for _, s := range r.Explanation.Clusters {
		out["share of "+s.Cluster] = s.Share
		out["all parts"] += s.Gets
	}
	return out
}

// short returns the name of a cluster whose part at rest differs from its share.
func short(r Simulation) string {
	for _, s := range r.Last.Explanation.Clusters {
		if slices.ContainsFunc(s.Reasons, func(r Reason) bool { return r.Code == DataLeft }) {
			return "" // the user has to decide
		}
		if s.Gets != s.Share {
			return fmt.Sprintf("%s has %d of %d", s.Cluster, s.Gets, s.Share)
		}
	}
	return ""
}

// clusterSimOf returns a clusterSim that starts in a given state.
func clusterSimOf(st State) *clusterSim {
	w := &clusterSim{State: st, downstream: map[string]*downstream{}, cut: map[string]time.Time{}, broken: map[string]bool{}}
	w.Leaves = slices.Clone(st.Leaves)
	for _, c := range w.Clusters {
		if !c.Ready || !c.Serves || c.Removing {
			w.cut[c.Name] = w.Now
		}
	}
	for _, l := range st.Leaves {
		w.downstream[l.Cluster] = &downstream{exists: true, want: l.Replicas, running: l.Running, ready: l.Ready}
	}
	return w
}

// live applies events in random order until nothing changes any more. Only then does time pass.
func (w *clusterSim) live(t *testing.T, d random, late bool) {
	t.Helper()
	for range 1_000 {
		for n := d.IntN(6); late && n > 0; n-- {
			w.happen(d)
		}
		r := w.settle(t)
		if r.Next.IsZero() {
			return
		}
		w.Now = r.Next
	}
	t.Fatalf("it does not come to rest: %s", w.last.Explanation)
}

// happen applies one random event to one cluster, or a part of a decision.
func (w *clusterSim) happen(d random) {
	all := w.names()
	if len(all) == 0 {
		return
	}
	switch name := all[d.IntN(len(all))]; d.IntN(4) {
	case 0:
		w.split()
	case 1:
		w.deliver(name)
	case 2:
		if _, cut := w.cut[name]; !cut {
			w.run(name, 1)
		}
	case 3:
		w.report(name)
	}
}

// BenchmarkSimulate simulates the loss of one of a hundred clusters. This is the work for each
// root.
func BenchmarkSimulate(b *testing.B) {
	var clusters []string
	for i := range 100 {
		clusters = append(clusters, fmt.Sprintf("cluster-%02d", i))
	}
	w := newClusterSim(b, policy{}, 1_000, clusters...)
	w.settle(b)
	w.lose("cluster-42")
	b.ReportAllocs()
	for b.Loop() {
		if r := Simulate(w.State); !r.AtRest {
			b.Fatal("no rest")
		}
	}
}
