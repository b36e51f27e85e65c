package splitter

import (
	"fmt"
	"math/big"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/fencing"
)

// TestAnyState checks the properties of every decision on random states.
func TestAnyState(t *testing.T) {
	t.Parallel()
	policies := drawPolicies(t, 1, nil)
	for i := range cases(100_000) {
		d := newRandom(1, i)
		st := drawState(d, policies)
		checkDecision(t, d, st)
		if t.Failed() {
			t.Fatalf("case %d: %+v\n%s", i, st, Split(st).Explanation)
		}
	}
}

// checkDecision checks one decision. It computes the expected result in another way than the
// engine.
func checkDecision(t *testing.T, d random, st State) {
	t.Helper()
	leaves, cluster := slices.Clone(st.Leaves), fmt.Sprint(st.Clusters[:min(len(st.Clusters), 1)])
	r := Split(st)
	if after := fmt.Sprint(st.Clusters[:min(len(st.Clusters), 1)]); after != cluster || !slices.Equal(st.Leaves, leaves) {
		t.Errorf("the state was changed: %v and %s, then %v and %s", leaves, cluster, st.Leaves, after)
	}
	checkShares(t, &st, r)
	checkStep(t, &st, r)

	// The order of the input does not matter.
	other := st
	other.Clusters, other.Leaves = slices.Clone(st.Clusters), slices.Clone(st.Leaves)
	d.Shuffle(len(other.Clusters), func(i, j int) { other.Clusters[i], other.Clusters[j] = other.Clusters[j], other.Clusters[i] })
	d.Shuffle(len(other.Leaves), func(i, j int) { other.Leaves[i], other.Leaves[j] = other.Leaves[j], other.Leaves[i] })
	shuffled := Split(other)
	if !slices.Equal(r.Changes, shuffled.Changes) || r.Progress != shuffled.Progress || !slices.EqualFunc(r.Explanation.Clusters, shuffled.Explanation.Clusters, equalShares) {
		t.Errorf("another order, another decision: %+v, %+v", r.Changes, shuffled.Changes)
	}

	// The replicas that an autoscaler sets for its leaf do not affect the other leaves.
	other.Leaves = slices.Clone(st.Leaves)
	autoscaled := false
	for i := range other.Leaves {
		if l := &other.Leaves[i]; l.Autoscaled {
			autoscaled = true
			l.Replicas, l.Running = l.Replicas+int32(d.IntN(9)), l.Running+int32(d.IntN(9))
		}
	}
	if autoscaled {
		rescaled := Split(other)
		if !slices.EqualFunc(r.Explanation.Clusters, rescaled.Explanation.Clusters, func(a, b Share) bool { return a.Share == b.Share }) {
			t.Errorf("an autoscaler changes the shares: %+v, then %+v", r.Explanation.Clusters, rescaled.Explanation.Clusters)
		}
	}

	// Deciding again changes nothing.
	w := clusterSim{State: st}
	w.Leaves = slices.Clone(st.Leaves)
	w.apply(r, r.Changes)
	again := Split(w.State)
	if len(again.Changes) > 0 || again.Progress != r.Progress {
		t.Errorf("first %+v, %+v; deciding again: %+v, %+v", r.Changes, r.Progress, again.Changes, again.Progress)
	}
	for i, s := range again.Explanation.Clusters {
		if len(again.Explanation.Clusters) == len(r.Explanation.Clusters) && s.Share != r.Explanation.Clusters[i].Share {
			t.Errorf("%s: %d in the end, and deciding again %d", s.Cluster, r.Explanation.Clusters[i].Share, s.Share)
		}
	}
}

func equalShares(a, b Share) bool {
	return a.Cluster == b.Cluster && a.Share == b.Share && a.Gets == b.Gets && a.Standing == b.Standing && slices.Equal(a.Reasons, b.Reasons)
}

// facts are the properties of a cluster that the checks use.
type facts struct {
	// out: the cluster must have nothing in the end. closed: it must get nothing new.
	out, closed bool
	// counts is true if the replicas that can run there count toward the bound.
	counts bool
}

// factsOf computes what a cluster may have, directly from the rules in the design.
func factsOf(st *State, name string) facts {
	i := slices.IndexFunc(st.Leaves, func(l Leaf) bool { return l.Cluster == name })
	has := i >= 0 && !st.Leaves[i].Deleting && (st.Leaves[i].Autoscaled || st.part(&st.Leaves[i]) > 0)
	return factsIf(st, name, has && !isTakenElsewhere(st))
}

// isTakenElsewhere reports whether another cluster accepts the parts of silent clusters.
func isTakenElsewhere(st *State) bool {
	return st.Policy.divide != workloadv1alpha1.DivideEverywhere && slices.ContainsFunc(st.Clusters, func(c Cluster) bool {
		s := site{name: c.Name, cluster: &c}
		st.weigh([]*site{&s})
		return s.weight > 0 && !factsIf(st, c.Name, false).closed && !st.Now.Before(c.Since.Add(returnTime))
	})
}

// factsIf computes the facts for a given answer to whether a silent cluster keeps its parts.
func factsIf(st *State, name string, strands bool) facts {
	var c *Cluster
	for i := range st.Clusters {
		if st.Clusters[i].Name == name {
			c = &st.Clusters[i]
		}
	}
	var own Leaf
	data := false
	for _, l := range st.Leaves {
		data = data || l.Bound
		if l.Cluster == name {
			own = l
		}
	}
	p := &st.Policy
	var f facts
	cutOff := c == nil || c.Removing
	var fenceHolds bool
	if c == nil {
		fenceHolds = !own.LostAt.IsZero() && !st.Now.Before(fencing.Replaceable(own.LostAt, p.fenceAfter, st.Root.TerminationGrace))
	} else {
		tolerated := func(effect workloadv1alpha1.TaintEffect) bool {
			return !slices.ContainsFunc(c.Taints, func(taint workloadv1alpha1.ClusterTaint) bool {
				return taint.Effect == effect && !slices.ContainsFunc(p.tolerations, func(t workloadv1alpha1.ClusterToleration) bool {
					return t.Effect == "" || t.Effect == effect
				})
			})
		}
		known := named{Set: c.Labels, name: c.Name}
		late := !c.Ready && st.Now.Sub(c.Since) >= p.grace && !strands
		evicted := !c.EvictAfter.IsZero() && !c.EvictAfter.After(st.Now)
		f.out = c.Removing || late || evicted || !p.clusters.Matches(known) || p.notClusters.Matches(known) ||
			!tolerated(workloadv1alpha1.TaintNoExecute) || p.fenceAfter > 0 && !c.Fences
		f.closed = f.out || !c.Ready || c.Unschedulable || !c.Serves || !tolerated(workloadv1alpha1.TaintNoSchedule)
		cutOff = cutOff || f.out && !c.Ready
		fenceHolds = !c.Removing && !c.Silent.IsZero() && !st.Now.Before(fencing.Replaceable(c.Silent, p.fenceAfter, st.Root.TerminationGrace))
	}
	if c == nil {
		f.out, f.closed = true, true
	}
	f.counts = !cutOff || p.fenceAfter > 0 && !fenceHolds
	if data {
		f.closed = f.closed || !own.Bound
		if own.Bound && f.out && c != nil && !c.Removing {
			f.out, f.closed, f.counts = false, true, true
		}
	}
	return f
}

// checkShares checks that the shares and the unplaced replicas add up to the whole. No share is
// where a filter forbids it. Nothing is unplaced while a cluster accepts parts.
func checkShares(t *testing.T, st *State, r Result) {
	t.Helper()
	e := r.Explanation
	sum, takes := r.Unplaced, false
	for _, s := range e.Clusters {
		f := factsOf(st, s.Cluster)
		sum += s.Share
		takes = takes || !f.closed && s.Weight > 0
		autoscaled := slices.ContainsFunc(st.Leaves, func(l Leaf) bool { return l.Cluster == s.Cluster && l.Autoscaled })
		switch {
		case s.Share < 0 || s.Gets < 0:
			t.Errorf("%s: %+v is negative", s.Cluster, s)
		case f.out && s.Share != 0:
			t.Errorf("%s is excluded and has %d in the end", s.Cluster, s.Share)
		case f.closed && s.Share > s.Has && !autoscaled:
			t.Errorf("%s takes nothing and goes from %d to %d", s.Cluster, s.Has, s.Share)
		case !f.out && s.Standing == Out, !f.closed && s.Standing != Open:
			t.Errorf("%s is %s: %v", s.Cluster, s.Standing, s.Reasons)
		}
	}
	whole := int32(1)
	switch st.Policy.divide {
	case workloadv1alpha1.DivideReplicas:
		whole = st.Root.Replicas
	case workloadv1alpha1.DivideEverywhere:
		whole = sum
	}
	if r.Unplaced < 0 || sum != whole || e.Whole != whole || e.Unplaced != r.Unplaced {
		t.Errorf("the shares and %d unplaced are %d, want %d", r.Unplaced, sum, whole)
	}
	if r.Unplaced > 0 && takes {
		t.Errorf("%d are unplaced, and a cluster takes parts", r.Unplaced)
	}
}

// checkStep checks three properties. The number of replicas that can run stays within the whole
// plus the surge, or does not grow. Parts move only toward their shares. No more parts move than
// is allowed.
func checkStep(t *testing.T, st *State, r Result) {
	t.Helper()
	e := r.Explanation
	var before, after int64
	for _, s := range e.Clusters {
		f := factsOf(st, s.Cluster)
		i := slices.IndexFunc(st.Leaves, func(l Leaf) bool { return l.Cluster == s.Cluster })
		var l Leaf
		if i >= 0 {
			l = st.Leaves[i]
		}
		if !l.Autoscaled && (s.Gets < min(s.Has, s.Share) || s.Gets > max(s.Has, s.Share)) && f.counts {
			t.Errorf("%s goes from %d to %d on the way to %d", s.Cluster, s.Has, s.Gets, s.Share)
		}
		switch most := int64(max(l.Replicas, l.Running)); {
		case l.Autoscaled:
			before, after = before+int64(s.Share), after+int64(s.Share)
		case f.counts && i >= 0:
			if !l.Settled {
				most = max(most, int64(l.AtMost))
			}
			before, after = before+most, after+max(most, int64(s.Gets))
		default:
			after += int64(s.Gets)
		}
	}
	bound := int64(e.Whole + e.Surge)
	if st.Policy.divide != workloadv1alpha1.DivideEverywhere && after > max(bound, before) {
		t.Errorf("%d can run, and then %d; the bound is %d", before, after, bound)
	}
	for _, c := range r.Changes {
		i := slices.IndexFunc(st.Leaves, func(l Leaf) bool { return l.Cluster == c.Cluster })
		if c.Action == Scale && (c.AtMost < c.To || int64(c.AtMost) < st.Leaves[i].most()) {
			t.Errorf("%+v forgets that %d can run", c, st.Leaves[i].most())
		}
	}
	made := r.Progress.Moves
	// written by a wrong clock, so it is ignored
	ahead := st.Progress.Since.After(st.Now.Add(st.Policy.interval))
	if !ahead && st.Now.Before(st.Progress.Since.Add(st.Policy.interval)) {
		made -= st.Progress.Moves
	} else if r.Progress == (Progress{Since: st.Progress.Since, Moves: st.Progress.Moves, Surged: r.Progress.Surged}) {
		made = 0 // nothing was written
	}
	if st.Policy.moves > 0 && (int64(made) > st.Policy.moves || r.Progress.Surged-st.Progress.Surged > made && made >= 0) {
		t.Errorf("%d moves are made, %d ahead before and %d now; %d are allowed", made, st.Progress.Surged, r.Progress.Surged, st.Policy.moves)
	}
}

// TestLeastMoves makes one change to a division at rest. It compares the number of moves with the
// least possible one, which it finds by trying every fair division.
func TestLeastMoves(t *testing.T) {
	t.Parallel()
	for i := range cases(100_000) {
		d := newRandom(2, i)
		w := clusterSim{State: State{Policy: newPolicyOf(workloadv1alpha1.StrategyWeighted), Now: start}}
		even := d.percent(40)
		for _, name := range names {
			w.Policy.weights[name] = 1
			if !even {
				w.Policy.weights[name] = uint64(d.IntN(6))
			}
		}
		w.Root.Replicas = int32(d.IntN(25))
		for _, name := range names[:1+d.IntN(5)] {
			w.Clusters = append(w.Clusters, readyCluster(name))
		}
		w.arrive(Split(w.State))
		for range 3 {
			change := w.disturb(d, even)
			r := Split(w.State)
			checkMoves(t, &w, r, change, even)
			if t.Failed() {
				t.Fatalf("case %d, %s: %v\n%s", i, change, w.Policy.weights, r.Explanation)
			}
			w.arrive(r)
		}
	}
}

// newPolicyOf returns a policy that sets only the strategy.
func newPolicyOf(strategy workloadv1alpha1.Strategy) Policy {
	p, err := NewPolicy(policy{Strategy: strategy}, workloadv1alpha1.DivideReplicas)
	if err != nil {
		panic(err)
	}
	return p
}

// arrive gives each cluster its share at once.
func (w *clusterSim) arrive(r Result) {
	w.Leaves = w.Leaves[:0]
	for _, s := range r.Explanation.Clusters {
		if s.Share > 0 && w.cluster(s.Cluster).Ready {
			w.Leaves = append(w.Leaves, Leaf{Cluster: s.Cluster, Replicas: s.Share, Running: s.Share, Ready: s.Share, AtMost: s.Share, Settled: true})
		}
	}
	w.Clusters = slices.DeleteFunc(w.Clusters, func(c Cluster) bool { return !c.Ready })
	for i := range w.Clusters {
		w.Clusters[i].Unschedulable = false
	}
}

// disturb makes one random change.
func (w *clusterSim) disturb(d random, even bool) string {
	one := func() *Cluster { return &w.Clusters[d.IntN(len(w.Clusters))] }
	switch what := d.IntN(5); {
	case what == 0 && len(w.Clusters) > 1:
		c := one()
		c.Ready = false
		return "lost " + c.Name
	case what == 1 && len(w.Clusters) < len(names):
		for _, name := range names {
			if w.isGone(name) {
				w.Clusters = append(w.Clusters, readyCluster(name))
				return "new " + name
			}
		}
	case what == 2 && len(w.Clusters) > 0:
		c := one()
		c.Unschedulable = true
		return "cordoned " + c.Name
	case what == 3 && !even && len(w.Clusters) > 0:
		c := one()
		w.Policy.weights[c.Name] = uint64(d.IntN(6))
		return "weighted " + c.Name
	}
	w.Root.Replicas = int32(d.IntN(25))
	return "rescaled"
}

func checkMoves(t *testing.T, w *clusterSim, r Result, change string, even bool) {
	t.Helper()
	rest := int64(w.Root.Replicas)
	var weights, parts, shares []int64
	var raised, lowered, lost int64
	held := false
	for _, s := range r.Explanation.Clusters {
		if c := w.cluster(s.Cluster); c.Unschedulable {
			held = true
			rest -= int64(s.Share)
			if s.Share != s.Has && change != "rescaled" {
				t.Errorf("%s is cordoned, and goes from %d to %d", s.Cluster, s.Has, s.Share)
			}
			continue
		} else if !c.Ready {
			lost = int64(s.Has)
			continue
		}
		weights = append(weights, int64(w.Policy.weights[s.Cluster]))
		parts, shares = append(parts, int64(s.Has)), append(shares, int64(s.Share))
		raised += max(0, int64(s.Share-s.Has))
		lowered += max(0, int64(s.Has-s.Share))
	}
	if least, fair := leastRaised(rest, weights, parts, shares); !fair || raised != least {
		t.Errorf("%d are added where %d are enough, or the shares are not fair: %v of %v", raised, least, shares, weights)
	}
	// With equal weights, a change of one cluster does not cost another one its parts.
	if even && !held && (change[:3] == "los" || change[:3] == "cor") && (lowered > 0 || raised > lost) {
		t.Errorf("%d are added and %d taken away elsewhere, %d were lost", raised, lowered, lost)
	}
	if n := int64(len(weights)); even && change[:3] == "new" && lowered > (int64(w.Root.Replicas)+n-1)/n {
		t.Errorf("a new cluster takes %d of %d, one of %d", lowered, w.Root.Replicas, n)
	}
}

// leastRaised returns the least that must be added so that each cluster has its exact quota,
// rounded up or down. It also reports whether the shares are such quotas.
func leastRaised(whole int64, weights, parts, shares []int64) (int64, bool) {
	var sum int64
	for _, w := range weights {
		sum += w
	}
	if sum == 0 {
		return 0, slices.Max(append(shares, 0)) == 0
	}
	low, high := make([]int64, len(weights)), make([]int64, len(weights))
	fair := true
	for i, w := range weights {
		quota := big.NewRat(whole*w, sum)
		low[i] = new(big.Int).Quo(quota.Num(), quota.Denom()).Int64()
		high[i] = low[i]
		if !quota.IsInt() {
			high[i]++
		}
		fair = fair && shares[i] >= low[i] && shares[i] <= high[i]
	}
	least := int64(-1)
	for choice := range 1 << len(weights) {
		var total, raised int64
		for i := range weights {
			share := low[i]
			if choice>>i&1 == 1 {
				share = high[i]
			}
			total += share
			raised += max(0, share-parts[i])
		}
		if total == whole && (least < 0 || raised < least) {
			least = raised
		}
	}
	return least, fair
}

// TestMonotone tests that a cluster with more weight never gets less. It also tests that a larger
// whole never lowers a share if all weights are equal.
func TestMonotone(t *testing.T) {
	t.Parallel()
	for i := range cases(20_000) {
		d := newRandom(3, i)
		st := State{Policy: newPolicyOf(workloadv1alpha1.StrategyWeighted), Now: start}
		st.Root.Replicas = int32(d.IntN(40))
		for _, name := range names[:1+d.IntN(len(names))] {
			st.Clusters = append(st.Clusters, readyCluster(name))
			st.Policy.weights[name] = uint64(1 + d.IntN(9))
		}
		first := Split(st)
		j := d.IntN(len(st.Clusters))
		st.Policy.weights[names[j]] += uint64(1 + d.IntN(3))
		if more := Split(st); more.Explanation.Clusters[j].Share < first.Explanation.Clusters[j].Share {
			t.Fatalf("case %d: more weight for %s is less:\n%s%s", i, names[j], first.Explanation, more.Explanation)
		}
		st.Policy.strategy = workloadv1alpha1.StrategyEven
		smaller := Split(st)
		w := clusterSim{State: st}
		w.arrive(smaller)
		w.Root.Replicas += int32(1 + d.IntN(3))
		for j, s := range Split(w.State).Explanation.Clusters {
			if s.Share < smaller.Explanation.Clusters[j].Share {
				t.Fatalf("case %d: a larger whole takes from %s", i, s.Cluster)
			}
		}
	}
}

// TestLargestRemainder tests that a new division follows the largest remainder method of the
// textbook.
func TestLargestRemainder(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		whole   int64
		weights map[string]uint64
		want    map[string]int64
	}{
		{10, map[string]uint64{"a": 1, "b": 1}, map[string]int64{"a": 5, "b": 5}},
		{7, map[string]uint64{"b": 1, "a": 1}, map[string]int64{"a": 4, "b": 3}},
		// 4.28, 4.28, 1.43
		{10, map[string]uint64{"a": 6, "b": 6, "c": 2}, map[string]int64{"a": 4, "b": 4, "c": 2}},
		// the Alabama paradox: 4.71, 4.71, 1.57
		{11, map[string]uint64{"a": 6, "b": 6, "c": 2}, map[string]int64{"a": 5, "b": 5, "c": 1}},
		{1 << 31, map[string]uint64{"a": 1 << 40, "b": 1 << 40, "c": 1}, map[string]int64{"a": 1 << 30, "b": 1 << 30, "c": 0}},
		{5, map[string]uint64{"a": 0, "b": 0}, map[string]int64{"a": 0, "b": 0}},
		{0, map[string]uint64{"a": 1}, map[string]int64{"a": 0}},
	} {
		var seats []seat
		for name, weight := range tc.weights {
			seats = append(seats, seat{name: name, weight: weight})
		}
		apportion(tc.whole, seats)
		got := map[string]int64{}
		for _, s := range seats {
			got[s.name] = s.gets
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%d by %v (want, got):\n%s", tc.whole, tc.weights, diff)
		}
	}
}
