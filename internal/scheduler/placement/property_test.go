package placement

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// model applies random changes to a snapshot. It also keeps the nodes and occupants from which
// a second snapshot can be built.
type model struct {
	t      testing.TB
	s      *Snapshot
	nodes  map[string]Node
	placed map[string]Occupant
	shapes []*Shape
	next   int
}

func newModel(t testing.TB, strategy Strategy) *model {
	host, zoneKey := rikv1alpha1.LabelHostname, rikv1alpha1.LabelZone
	return &model{
		t: t, s: NewSnapshot(Options{Strategy: strategy, Salt: 3}),
		nodes: map[string]Node{}, placed: map[string]Occupant{},
		shapes: []*Shape{
			testShape(t, "small", 300),
			testShape(t, "large", 1500, priority(5)),
			testShape(t, "free", 0),
			testShape(t, "apart", 100, forbid("apart", host)),
			testShape(t, "zoned", 100, forbid("small", zoneKey), priority(9)),
			testShape(t, "near", 100, require("small", zoneKey)),
			testShape(t, "even", 100, spread(zoneKey, 1, rikv1alpha1.DoNotSchedule)),
			testShape(t, "hosts", 100, spread(host, 2, rikv1alpha1.DoNotSchedule)),
			testShape(t, "soft", 100, spread("rack", 1, rikv1alpha1.ScheduleAnyway)),
			testShape(t, "net", 100, hostPort(8080)),
			testShape(t, "port", 100, nodePort(8080)),
			testShape(t, "balanced", 100, balanced(8081)),
			testShape(t, "vm", 100, virtual),
		},
	}
}

func drawNode(t *rapid.T) Node {
	name := rapid.SampledFrom([]string{"n1", "n2", "n3", "n4", "n5", "n6"}).Draw(t, "node")
	n := testNode(name, func(n *Node) {
		n.Ready = rapid.IntRange(0, 9).Draw(t, "ready") > 0
		n.Unschedulable = rapid.IntRange(0, 9).Draw(t, "cordon") == 0
		n.Allocatable.MilliCPU = rapid.SampledFrom([]int64{1000, 2000, 4000}).Draw(t, "cpu")
		n.Allocatable.Instances = rapid.Int64Range(1, 8).Draw(t, "instances")
	})
	if z := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "zone"); z != "" {
		n.Labels[rikv1alpha1.LabelZone] = z
	}
	if rapid.IntRange(0, 20).Draw(t, "odd") == 0 {
		n.Labels[rikv1alpha1.LabelHostname] = "shared"
	}
	if rapid.Bool().Draw(t, "vms") {
		runs(rikv1alpha1.KindPod, rikv1alpha1.KindFunction)(&n)
	}
	n.NoNetwork = rapid.IntRange(0, 3).Draw(t, "no network") == 0
	if rapid.IntRange(0, 3).Draw(t, "used") == 0 {
		uses(8080, 8081)(&n)
	}
	if rapid.Bool().Draw(t, "taint") {
		n.Taints = []rikv1alpha1.Taint{{Key: "a", Effect: rapid.SampledFrom([]rikv1alpha1.TaintEffect{
			rikv1alpha1.TaintPreferNoSchedule, rikv1alpha1.TaintNoSchedule,
		}).Draw(t, "effect")}}
	}
	return n
}

// step makes one random change.
func (w *model) step(t *rapid.T) {
	switch rapid.SampledFrom([]string{"node", "place", "place", "place", "place", "remove", "gone", "forget"}).Draw(t, "op") {
	case "node":
		n := drawNode(t)
		w.nodes[n.Name] = n
		w.s.SetNode(n)
	case "gone":
		name := rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "gone")
		delete(w.nodes, name)
		w.s.RemoveNode(name)
	case "place":
		w.place(t)
	case "remove":
		if uids := w.uids(); len(uids) > 0 {
			uid := rapid.SampledFrom(uids).Draw(t, "uid")
			delete(w.placed, uid)
			w.s.Remove(uid)
		}
	case "forget":
		w.s.Forget(rapid.SampledFrom(w.shapes).Draw(t, "shape"))
	}
}

func (w *model) place(t *rapid.T) {
	shape := rapid.SampledFrom(w.shapes).Draw(t, "shape")
	d := Place(w.s, Request{Shape: shape})
	if d.Node == "" {
		return
	}
	n := w.nodes[d.Node]
	if !n.Ready || n.Unschedulable {
		t.Fatalf("placed on %s, which is not ready or cordoned", d.Node)
	}
	if shape.virtual && !slices.Contains(n.Kinds, rikv1alpha1.KindFunction) {
		t.Fatalf("placed a microVM on %s, which runs %v", d.Node, n.Kinds)
	}
	if shape.networked && n.NoNetwork {
		t.Fatalf("placed what serves ports on %s, which has no network", d.Node)
	}
	for _, p := range slices.Concat(shape.clusterPorts, shape.nodePorts) {
		if only, used := n.UsedPorts[p]; used && (!only || slices.Contains(shape.nodePorts, p)) {
			t.Fatalf("placed on %s, whose machine uses port %s", d.Node, p)
		}
	}
	w.next++
	o := Occupant{UID: fmt.Sprint(w.next), Shape: shape, Node: d.Node, CreatedUnixNano: int64(w.next)}
	before := w.free(d.Node)
	if before.lacking(&shape.requests) != fits {
		t.Fatalf("placed on %s, which has %+v free, needs %+v", d.Node, before, shape.requests)
	}
	w.placed[o.UID] = o
	w.s.Put(o)
}

func (w *model) uids() []string {
	var uids []string
	for uid := range w.placed {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
}

// free computes what a node has left from the recorded nodes and occupants.
func (w *model) free(name string) Resources {
	free := w.nodes[name].Allocatable
	for _, o := range w.placed {
		if o.Node == name {
			free.subtract(o.Shape.requests)
		}
	}
	return free
}

// rebuilt creates a snapshot from the recorded nodes and occupants, in another order.
func (w *model) rebuilt() *Snapshot {
	s := NewSnapshot(w.s.options)
	var names []string
	for name := range w.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	slices.Reverse(names)
	for _, uid := range w.uids() {
		s.Put(w.placed[uid])
	}
	for _, name := range names {
		s.SetNode(w.nodes[name])
	}
	return s
}

func TestIncrementalEqualsFromScratch(t *testing.T) {
	t.Parallel()
	for _, strategy := range []Strategy{Spread, BinPack} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) {
				w := newModel(t, strategy)
				for range rapid.IntRange(1, 60).Draw(rt, "steps") {
					w.step(rt)
				}
				other, clone := w.rebuilt(), w.s.Clone()
				for _, shape := range w.shapes {
					r := Request{Shape: shape}
					want := Place(other, r)
					if diff := cmp.Diff(want, Place(w.s, r)); diff != "" {
						rt.Fatalf("%s: incremental differs from scratch (-scratch +incremental):\n%s", shape.workload, diff)
					}
					if diff := cmp.Diff(want, Place(clone, r)); diff != "" {
						rt.Fatalf("%s: clone differs (-scratch +clone):\n%s", shape.workload, diff)
					}
					if diff := cmp.Diff(Explain(other, r), Explain(w.s, r)); diff != "" {
						rt.Fatalf("%s: explanation differs (-scratch +incremental):\n%s", shape.workload, diff)
					}
				}
			})
		})
	}
}

func TestPlanningTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := newModel(t, Spread)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			w.step(rt)
		}
		shape := rapid.SampledFrom(w.shapes).Draw(rt, "shape")
		r := Request{Shape: shape, UID: "new"}
		first := Place(w.s, r)
		Explain(w.s, r)
		Preempt(w.s, r)
		if diff := cmp.Diff(first, Place(w.s, r)); diff != "" {
			rt.Fatalf("second decision differs (-first +second):\n%s", diff)
		}
		if w.s.Occupants() != len(w.placed) {
			rt.Fatalf("occupants = %d, want %d", w.s.Occupants(), len(w.placed))
		}
		for _, o := range w.placed {
			if node, ok := w.s.Where(o.UID); !ok || node != o.Node {
				rt.Fatalf("Where(%s) = %s, %v, want %s", o.UID, node, ok, o.Node)
			}
		}
	})
}

// TestVerdictsAgreeWithDecision: Explain finds a node that fits exactly when Place does, and
// Place chooses the one with the best score.
func TestVerdictsAgreeWithDecision(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := newModel(t, Spread)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			w.step(rt)
		}
		e := Explain(w.s, Request{Shape: rapid.SampledFrom(w.shapes).Draw(rt, "shape")})
		best, fitting := int64(-1), map[string]int64{}
		for _, v := range e.Results {
			if v.Filter == "" {
				fitting[v.Node] = v.Score
				best = max(best, v.Score)
			}
		}
		score, ok := fitting[e.Node]
		if (e.Node != "") != (len(fitting) > 0) || e.Node != "" && (!ok || score != best || e.Score != best) {
			rt.Fatalf("decision %q (%d), best outcome %d of %v", e.Node, e.Score, best, fitting)
		}
	})
}

// TestPreemptionMakesRoom: the request fits on the node without the victims, and does not fit
// if any victim stays.
func TestPreemptionMakesRoom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := newModel(t, Spread)
		for range rapid.IntRange(5, 60).Draw(rt, "steps") {
			w.step(rt)
		}
		r := Request{UID: "new", Shape: rapid.SampledFrom([]*Shape{w.shapes[1], w.shapes[4]}).Draw(rt, "shape")}
		if Place(w.s, r).Node != "" {
			return
		}
		p, ok := Preempt(w.s, r)
		if !ok {
			return
		}
		for _, uid := range p.Victims {
			o := w.placed[uid]
			if o.Shape.priority >= r.Shape.priority || o.Node != p.Node {
				rt.Fatalf("victim %s has priority %d and is on %s; request %d on %s", uid, o.Shape.priority, o.Node, r.Shape.priority, p.Node)
			}
			w.s.Remove(uid)
		}
		if !fitsNode(w.s, r, p.Node) {
			rt.Fatalf("the request does not fit on %s after %v went", p.Node, p.Victims)
		}
		for _, uid := range p.Victims {
			w.s.Put(w.placed[uid])
			if fitsNode(w.s, r, p.Node) {
				rt.Fatalf("victim %s need not go", uid)
			}
			w.s.Remove(uid)
		}
	})
}

func fitsNode(s *Snapshot, r Request, name string) bool {
	for _, v := range Explain(s, r).Results {
		if v.Node == name {
			return v.Filter == ""
		}
	}
	return false
}

// TestRemoveFault08: the published scheduler added and subtracted replicas in its counts, and
// the counts fell below zero. Here a UID counts once, even if it is put or removed several
// times.
func TestRemoveFault08(t *testing.T) {
	t.Parallel()
	s := cluster(testNode("a"), testNode("b"))
	shape := testShape(t, "w", 1000)
	want := s.nodes[0].free
	for range 3 {
		s.Put(Occupant{UID: "x", Shape: shape, Node: "a"})
	}
	if got := s.nodes[0].free.MilliCPU; got != 3000 {
		t.Errorf("free after three puts of one instance = %d, want 3000", got)
	}
	s.Put(Occupant{UID: "x", Shape: shape, Node: "b"})
	if s.nodes[0].free != want || s.nodes[1].free.MilliCPU != 3000 {
		t.Errorf("after a move: a has %+v, b has %+v free", s.nodes[0].free, s.nodes[1].free)
	}
	for range 3 {
		s.Remove("x")
		s.Remove("never seen")
	}
	if s.nodes[0].free != want || s.nodes[1].free != want || s.Occupants() != 0 {
		t.Errorf("after removal: a has %+v, b has %+v free", s.nodes[0].free, s.nodes[1].free)
	}
}
