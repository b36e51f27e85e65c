package splitter

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// start is the time at which every clusterSim starts.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// clusterSim is a State with simulated clusters in which replicas start and stop. The State learns
// what runs only from reports.
type clusterSim struct {
	State
	downstream map[string]*downstream
	// cut contains the disconnected clusters. They receive and report nothing.
	cut map[string]time.Time
	// broken contains the clusters whose replicas never become ready.
	broken map[string]bool
	last   Result
}

// downstream is the content of a cluster: the last spec that it received, and what runs.
type downstream struct {
	exists         bool
	want           int32
	running, ready int32
}

func newPolicy(tb testing.TB, p workloadv1alpha1.PlacementPolicy) Policy {
	tb.Helper()
	policy, err := NewPolicy(p, workloadv1alpha1.DivideReplicas)
	if err != nil {
		tb.Fatal(err)
	}
	return policy
}

// newClusterSim returns a clusterSim with ready clusters and a root with a number of replicas.
func newClusterSim(tb testing.TB, p workloadv1alpha1.PlacementPolicy, replicas int32, clusters ...string) *clusterSim {
	w := &clusterSim{downstream: map[string]*downstream{}, cut: map[string]time.Time{}, broken: map[string]bool{}}
	w.Root = Root{Name: "web", Replicas: replicas}
	w.Policy = newPolicy(tb, p)
	w.Now = start
	for _, name := range clusters {
		w.Clusters = append(w.Clusters, readyCluster(name))
	}
	return w
}

func readyCluster(name string) Cluster {
	return Cluster{Name: name, Ready: true, Since: start.Add(-time.Hour), Serves: true, Fences: true}
}

func surgeOf(n int) *intstr.IntOrString {
	s := intstr.FromInt32(int32(n))
	return &s
}

func (w *clusterSim) cluster(name string) *Cluster {
	i := slices.IndexFunc(w.Clusters, func(c Cluster) bool { return c.Name == name })
	if i < 0 {
		panic("no cluster " + name)
	}
	return &w.Clusters[i]
}

func (w *clusterSim) remove(name string) {
	w.Clusters = slices.DeleteFunc(w.Clusters, func(c Cluster) bool { return c.Name == name })
}

func (w *clusterSim) leaf(name string) *Leaf {
	if i := slices.IndexFunc(w.Leaves, func(l Leaf) bool { return l.Cluster == name }); i >= 0 {
		return &w.Leaves[i]
	}
	return nil
}

// apply writes a decision, or only some of its changes.
func (w *clusterSim) apply(r Result, changes []Change) {
	w.Progress = r.Progress
	for _, c := range changes {
		l := w.leaf(c.Cluster)
		switch c.Action {
		case Create:
			w.Leaves = append(w.Leaves, Leaf{Cluster: c.Cluster, Replicas: c.To, AtMost: c.AtMost})
			continue
		case Scale:
			l.Replicas, l.AtMost, l.Settled = c.To, c.AtMost, false
			if !c.RefusedAt.IsZero() {
				l.RefusedAt = c.RefusedAt
			}
		case Delete:
			l.Deleting = true
			if w.isGone(c.Cluster) {
				w.forget(c.Cluster) // no syncer holds it with a finalizer
			}
		case Note:
			l.LostAt = c.LostAt
		}
	}
}

func (w *clusterSim) isGone(name string) bool {
	return !slices.ContainsFunc(w.Clusters, func(c Cluster) bool { return c.Name == name })
}

func (w *clusterSim) forget(name string) {
	w.Leaves = slices.DeleteFunc(w.Leaves, func(l Leaf) bool { return l.Cluster == name })
}

// split decides and applies all changes.
func (w *clusterSim) split() Result {
	w.last = Split(w.State)
	w.apply(w.last, w.last.Changes)
	return w.last
}

func (w *clusterSim) down(name string) *downstream {
	if w.downstream[name] == nil {
		w.downstream[name] = &downstream{}
	}
	return w.downstream[name]
}

// deliver sends the current leaf to its cluster.
func (w *clusterSim) deliver(name string) {
	if _, cut := w.cut[name]; cut || w.isGone(name) {
		return
	}
	d, l := w.down(name), w.leaf(name)
	d.exists = l != nil && !l.Deleting
	d.want = 0
	if d.exists {
		d.want = l.Replicas
	}
}

// run lets a cluster start or stop at most n replicas, and makes the running ones ready.
func (w *clusterSim) run(name string, n int32) {
	d := w.down(name)
	d.running += max(min(d.want-d.running, n), -n)
	d.ready = min(d.ready, d.running)
	if !w.broken[name] {
		d.ready = min(d.running, d.ready+n)
	}
}

// report updates the State with what runs in a cluster.
func (w *clusterSim) report(name string) {
	l := w.leaf(name)
	if _, cut := w.cut[name]; cut || l == nil || w.isGone(name) {
		return
	}
	d := w.down(name)
	l.Running, l.Ready = d.running, d.ready
	l.Settled = d.want == l.Replicas && (d.exists || l.Replicas == 0) && !l.Deleting
	if l.Deleting && !d.exists && d.running == 0 {
		w.forget(name)
	}
}

// settle lets everything happen at once, until nothing changes any more.
func (w *clusterSim) settle(tb interface{ Fatalf(string, ...any) }) Result {
	for range 200 {
		r := w.split()
		before := slices.Clone(w.Leaves)
		for _, name := range w.names() {
			w.deliver(name)
			w.run(name, 1<<30)
			w.report(name)
		}
		if len(r.Changes) == 0 && slices.Equal(w.Leaves, before) {
			return r
		}
	}
	tb.Fatalf("it does not come to rest: %s\n%+v", w.last.Explanation, w.last.Changes)
	return Result{}
}

// names returns the names of all current and removed clusters.
func (w *clusterSim) names() []string {
	var names []string
	for _, c := range w.Clusters {
		names = append(names, c.Name)
	}
	for _, l := range w.Leaves {
		names = append(names, l.Cluster)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// parts returns the replicas in the leaves.
func (w *clusterSim) parts() map[string]int32 {
	parts := map[string]int32{}
	for _, l := range w.Leaves {
		if !l.Deleting {
			parts[l.Cluster] = l.Replicas
		}
	}
	return parts
}

// lose disconnects a cluster.
func (w *clusterSim) lose(name string) {
	c := w.cluster(name)
	c.Ready, c.Since, c.Silent = false, w.Now, w.Now
	w.cut[name] = w.Now
}

// back connects a cluster again. Its syncer delivers what is wanted before the fence, if there is
// one, lets replicas start again.
func (w *clusterSim) back(name string) {
	c := w.cluster(name)
	c.Ready, c.Since, c.Silent = true, w.Now, time.Time{}
	delete(w.cut, name)
	w.deliver(name)
}
