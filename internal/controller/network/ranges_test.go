package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func TestRangesExhausted(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Options{ClusterCIDR: "10.62.0.0/23"})
	a, b, c := w.node("a", ""), w.node("b", ""), w.node("c", "")
	if a.Spec.PodCIDR != "10.62.0.0/24" || b.Spec.PodCIDR != "10.62.1.0/24" || c.Spec.PodCIDR != "" {
		t.Fatalf("ranges %q, %q, %q, want one each for two nodes", a.Spec.PodCIDR, b.Spec.PodCIDR, c.Spec.PodCIDR)
	}
	if _, problem := w.ranges.Of(c); !strings.Contains(problem, "no range of prefix length 24 is free in --cluster-cidr 10.62.0.0/23") {
		t.Errorf("Of = %q, want the reason", problem)
	}
	w.bump(&a.ObjectMeta)
	w.nodes.Remove(a)
	if !slices.Equal(w.wokenNodes, []string{"c"}) {
		t.Errorf("woke %v, want the node that waits", w.wokenNodes)
	}
	if got, problem := w.ranges.Of(c); got != "10.62.0.0/24" || problem != "" {
		t.Errorf("Of = %q, %q, want the range that was freed", got, problem)
	}
}

func TestRangesForget(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Options{ClusterCIDR: "10.62.0.0/24"})
	if got, _ := w.ranges.Of(&rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "never made"}}); got == "" {
		t.Fatal("no range for the first")
	}
	w.ranges.Forget("never made")
	if n := w.node("a", ""); n.Spec.PodCIDR == "" {
		t.Error("the request for a node that does not exist is lost")
	}
}

func TestRangesClash(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Options{})
	old := w.node("old", "")
	young := &rikv1alpha1.Node{ObjectMeta: w.meta("", "young"), Spec: rikv1alpha1.NodeSpec{PodCIDR: old.Spec.PodCIDR}}
	// The lists may arrive in any order. Here the younger node is first.
	for _, order := range [][]*rikv1alpha1.Node{{old, young}, {young, old}} {
		w := newFixture(t, Options{})
		for _, n := range order {
			w.nodes.Observe(n)
		}
		if _, problem := w.ranges.Of(old); problem != "" {
			t.Errorf("the older has %q", problem)
		}
		if _, problem := w.ranges.Of(young); !strings.Contains(problem, "which belongs to old") {
			t.Errorf("the younger has %q, want to know who has its range", problem)
		}
		if e := w.table.journal.get(key{kind: peerKind, name: "young"}); e == nil {
			t.Error("the younger is not in the table")
		}
		if got := w.ranges.usable(young); got != "" {
			t.Errorf("nodes may receive %s at the younger", got)
		}
		w.wokenNodes = nil
		w.nodes.Remove(w.changeNode(old, func(*rikv1alpha1.Node) {}))
		if !slices.Contains(w.wokenNodes, "young") {
			t.Errorf("woke %v, want the one that clashed", w.wokenNodes)
		}
		if _, problem := w.ranges.Of(young); problem != "" || w.ranges.usable(young) == "" {
			t.Errorf("with the older gone: %q", problem)
		}
	}
	for podCIDR, want := range map[string]string{
		"10.63.1.0/24": "--service-cidr", "fd00::/64": "must be IPv4", "10.9.0.2/31": "at most 30", "all": "not an address range",
	} {
		odd := &rikv1alpha1.Node{ObjectMeta: w.meta("", "odd"), Spec: rikv1alpha1.NodeSpec{PodCIDR: podCIDR}}
		w.nodes.Observe(odd)
		if _, problem := w.ranges.Of(odd); !strings.Contains(problem, want) || w.ranges.usable(odd) != "" {
			t.Errorf("of a node with %s: %q, want %q and nothing for others", podCIDR, problem, want)
		}
	}
}

// TestRestartKeeps: an allocator that is filled from lists in any order gives each owner its
// old addresses, and gives them to no other owner.
func TestRestartKeeps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newFixture(testing.TB(nil), Options{ClusterCIDR: "10.62.0.0/20", ServiceCIDR: "10.63.0.0/27"})
		var nodes []*rikv1alpha1.Node
		var workloads []*rikv1alpha1.Workload
		for i := range rapid.IntRange(0, 16).Draw(t, "nodes") {
			nodes = append(nodes, w.node(fmt.Sprint("n", i), ""))
		}
		for i := range rapid.IntRange(0, 30).Draw(t, "workloads") {
			workloads = append(workloads, w.workload(fmt.Sprint("w", i), rikv1alpha1.Port{Port: 80}))
		}
		again := newFixture(testing.TB(nil), Options{ClusterCIDR: "10.62.0.0/20", ServiceCIDR: "10.63.0.0/27"})
		for _, n := range rapid.Permutation(nodes).Draw(t, "order of nodes") {
			again.nodes.Observe(n)
		}
		for _, o := range rapid.Permutation(workloads).Draw(t, "order of workloads") {
			again.workloads.Observe(o)
		}
		seen := map[string]string{}
		note := func(who, what string) {
			if other := seen[what]; what == "" || other != "" {
				t.Fatalf("%s has %q, and so has %q", who, what, other)
			}
			seen[what] = who
		}
		for _, n := range nodes {
			got, problem := again.ranges.Of(n)
			if got != n.Spec.PodCIDR || problem != "" {
				t.Fatalf("%s had %s and has %s, %s", n.Name, n.Spec.PodCIDR, got, problem)
			}
			note(n.Name, got)
		}
		for _, o := range workloads {
			got, problem := again.addresses.Of(o)
			if !slices.Equal(got, o.Status.Addresses) || problem != "" {
				t.Fatalf("%s had %v and has %v, %s", o.Name, o.Status.Addresses, got, problem)
			}
			note(o.Name, got[0])
		}
		if len(nodes) < 16 {
			note("a new node", again.node("new", "").Spec.PodCIDR)
		}
		if len(workloads) < 30 {
			note("a new workload", again.workload("new", rikv1alpha1.Port{Port: 80}).Status.Addresses[0])
		}
	})
}
