package splitter

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// TestAnyHistory adds and removes clusters, delays what they receive and report, and stops the
// splitter between any two writes. The number of replicas that really run never exceeds the whole
// plus the surge. When nothing changes any more, the parts equal the shares.
//
// Half of the roots are fenced, and the test disconnects and removes their clusters. It does not
// do so for the other roots, because then more replicas may run.
func TestAnyHistory(t *testing.T) {
	t.Parallel()
	for i := range cases(4_000) {
		d := newRandom(4, i)
		h := newHistory(t, d, i%2 == 0)
		for range 80 {
			h.event(d)
			h.check(t)
			if t.Failed() {
				t.Fatalf("case %d: %v\n%s", i, h.log[max(0, len(h.log)-25):], h.last.Explanation)
			}
		}
		if h.rest(t); t.Failed() {
			t.Fatalf("case %d: %+v\n%s", i, h.Leaves, h.last.Explanation)
		}
	}
}

type history struct {
	*clusterSim
	fenced bool
	// limit is the most replicas that may run: the bound, or what could run when the whole
	// shrank.
	limit int64
	log   []string
}

func newHistory(t *testing.T, d random, fenced bool) *history {
	p := policy{MaxSurge: surgeOf(d.IntN(4)), Divide: workloadv1alpha1.DivideReplicas}
	if d.percent(15) {
		p.Divide, p.MaxSurge = workloadv1alpha1.DivideWhole, surgeOf(d.IntN(2))
	}
	if fenced {
		p.FenceAfter = &metav1.Duration{Duration: time.Minute}
	}
	if d.percent(30) {
		p.MaxMoves = &workloadv1alpha1.MoveLimit{Count: int32(1 + d.IntN(3))}
	}
	h := &history{clusterSim: newClusterSim(t, p, int32(d.IntN(16)), names[:1+d.IntN(4)]...), fenced: fenced}
	h.Root.TerminationGrace = 20 * time.Second
	h.limit = h.bound()
	return h
}

func (h *history) bound() int64 {
	st := &h.State
	return st.whole() + st.Policy.surgeOf(st.whole())
}

// event applies one random event.
func (h *history) event(d random) {
	all := h.names()
	for name := range h.downstream {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		all = names[:1]
	}
	slices.Sort(all)
	name := all[d.IntN(len(all))]
	what := d.IntN(100)
	h.log = append(h.log, name+" "+eventName(what))
	_, cut := h.cut[name]
	switch known := !h.isGone(name); {
	case what < 30:
		h.last = Split(h.State)
		h.apply(h.last, h.some(d))
	case what < 45:
		h.deliver(name)
	case what < 65:
		h.run(name, int32(1+d.IntN(3)))
	case what < 80:
		h.report(name)
	case what < 84:
		h.pass(time.Duration(d.IntN(90)) * time.Second)
	case what < 86:
		h.rescale(int32(d.IntN(16)))
	case what < 88 && known:
		h.cluster(name).Unschedulable = !h.cluster(name).Unschedulable
	case what < 90 && known:
		h.cluster(name).EvictAfter = []time.Time{{}, h.Now, h.Now.Add(time.Minute)}[d.IntN(3)]
	case what < 92:
		h.broken[name] = !h.broken[name]
	case what < 94 && known && !cut && h.fenced:
		h.cut[name] = h.Now
	case what < 97 && known && cut:
		if c := h.cluster(name); c.Ready {
			c.Ready, c.Since, c.Silent = false, h.Now, h.Now
		} else {
			h.back(name)
		}
	case what < 98:
		if l := h.leaf(name); l != nil && known {
			l.Deleting = true
		}
	case what == 98 && known && h.fenced:
		// Removing a cluster releases the leaves that it still has to delete. Their replicas are
		// not counted any more.
		if l := h.leaf(name); l != nil && l.Deleting {
			return
		}
		h.remove(name)
		h.cut[name] = h.Now
	case what == 99 && !known && h.down(name).running == 0:
		delete(h.cut, name)
		h.Clusters = append(h.Clusters, readyCluster(name))
		h.downstream[name] = nil
	}
}

func eventName(what int) string {
	for _, e := range []struct {
		below int
		name  string
	}{{30, "split"}, {45, "deliver"}, {65, "run"}, {80, "report"}, {84, "pass"}, {86, "rescale"}, {88, "cordon"}, {90, "evict"}, {92, "break"}, {94, "cut"}, {97, "notice"}, {98, "delete"}} {
		if what < e.below {
			return e.name
		}
	}
	return "come or go"
}

// some returns the changes that a splitter writes before it is killed. In most cases these are
// all of them.
func (h *history) some(d random) []Change {
	changes := slices.Clone(h.last.Changes)
	d.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	if d.percent(30) {
		return changes[:d.IntN(len(changes)+1)]
	}
	return changes
}

// pass advances the time. Clusters that were disconnected long enough stop fenced replicas. They
// start them again only after they have received what is wanted.
func (h *history) pass(by time.Duration) {
	h.Now = h.Now.Add(by)
	for name, since := range h.cut {
		if h.fenced && h.Now.Sub(since) >= h.Policy.fenceAfter+h.Root.TerminationGrace {
			d := h.down(name)
			d.running, d.ready, d.want = 0, 0, 0
		}
	}
}

// rescale changes the whole. Replicas that could run before the change may exceed the new bound.
func (h *history) rescale(to int32) {
	h.Root.Replicas = to
	h.limit = max(h.limit, h.bound())
}

// check counts the replicas that really run.
func (h *history) check(t *testing.T) {
	t.Helper()
	var running int64
	for _, d := range h.downstream {
		if d != nil {
			running += int64(d.running)
		}
	}
	if running > h.limit {
		t.Errorf("%d run, the limit is %d", running, h.limit)
	}
	if running <= h.bound() && h.potential() <= h.bound() {
		h.limit = h.bound()
	}
}

// potential returns how many replicas could run without another decision.
func (h *history) potential() int64 {
	all := map[string]int64{}
	for name, d := range h.downstream {
		if d != nil {
			all[name] = int64(max(d.running, d.want))
		}
	}
	for _, l := range h.Leaves {
		all[l.Cluster] = max(all[l.Cluster], l.most())
	}
	var sum int64
	for _, n := range all {
		sum += n
	}
	return sum
}

// rest repairs everything, and checks the result.
func (h *history) rest(t *testing.T) {
	t.Helper()
	clear(h.broken)
	for _, c := range slices.Clone(h.Clusters) {
		if _, cut := h.cut[c.Name]; cut {
			h.back(c.Name)
		}
	}
	r := h.settle(t)
	for i := 0; i < 100 && !r.Next.IsZero(); i++ {
		h.pass(r.Next.Sub(h.Now))
		r = h.settle(t)
	}
	sum := r.Unplaced
	for _, s := range r.Explanation.Clusters {
		sum += s.Share
		if h.parts()[s.Cluster] != s.Share || s.Most != s.Share {
			t.Errorf("%s has %d and %d can run, want %d", s.Cluster, h.parts()[s.Cluster], s.Most, s.Share)
		}
		if f := factsOf(&h.State, s.Cluster); f.out && h.leaf(s.Cluster) != nil {
			t.Errorf("%s is excluded and has a leaf", s.Cluster)
		}
		if d := h.down(s.Cluster); d.running != s.Share {
			t.Errorf("%s runs %d, want %d", s.Cluster, d.running, s.Share)
		}
	}
	if whole := h.whole(); int64(sum) != whole {
		t.Errorf("the parts and what is unplaced are %d, want %d", sum, whole)
	}
}
