package placement

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func TestScores(t *testing.T) {
	t.Parallel()
	prefer := func(c *ShapeConfig) {
		affinityOf(c).NodePreferred = []rikv1alpha1.WeightedNodeTerm{{Weight: 10, Term: rikv1alpha1.NodeTerm{
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "ssd", Operator: metav1.LabelSelectorOpExists},
			},
		}}}
	}
	tests := map[string]struct {
		better, worse Node
		shape         []func(*ShapeConfig)
	}{
		"emptier node": {
			better: testNode("better", func(n *Node) { n.Allocatable.MilliCPU *= 2 }), worse: testNode("worse"),
		},
		"image is there": {
			better: testNode("better", func(n *Node) { n.Images = map[string]struct{}{"img": {}} }), worse: testNode("worse"),
		},
		"preferred label": {
			better: testNode("better", label("ssd", "")), worse: testNode("worse"), shape: []func(*ShapeConfig){prefer},
		},
		"taint to avoid": {
			better: testNode("better"), worse: testNode("worse", taint("old", rikv1alpha1.TaintPreferNoSchedule)),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := cluster(tc.worse, tc.better)
			if got := Place(s, Request{Shape: testShape(t, "w", 500, tc.shape...)}); got.Node != "better" {
				t.Errorf("Place() = %+v, want better", got)
			}
		})
	}
}

func TestZonesAreKeptEven(t *testing.T) {
	t.Parallel()
	s := cluster(testNode("a1", zone("a")), testNode("a2", zone("a")), testNode("a3", zone("a")), testNode("b1", zone("b")))
	got := fill(s, testShape(t, "w", 100), 6)
	if got["b1"] != 3 {
		t.Errorf("placed %v, want half of them in zone b", got)
	}
}

func TestBinPackFillsOneNodeFirst(t *testing.T) {
	t.Parallel()
	s := NewSnapshot(Options{Strategy: BinPack})
	for i := range 4 {
		s.SetNode(testNode(fmt.Sprintf("n%d", i)))
	}
	got := fill(s, testShape(t, "w", 1000), 6)
	used := map[int]int{}
	for _, n := range got {
		used[n]++
	}
	if len(got) != 2 || used[4] != 1 || used[2] != 1 {
		t.Errorf("placed %v, want 4 on one node and 2 on another", got)
	}
}

// TestPlaceFault03: the published scheduler started at the first ready worker for every event.
// All instances that were created one at a time therefore went to that worker.
func TestPlaceFault03(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]bool{"one workload": true, "a workload each": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := NewSnapshot(Options{})
			for i := range 10 {
				s.SetNode(testNode(fmt.Sprintf("n%d", i)))
			}
			got := map[string]int{}
			for i := range 100 {
				workload := "w"
				if !one {
					workload = fmt.Sprintf("w%d", i)
				}
				shape := testShape(t, workload, 0)
				d := Place(s, Request{Shape: shape})
				got[d.Node]++
				s.Put(Occupant{UID: fmt.Sprint(i), Shape: shape, Node: d.Node})
			}
			for node, n := range got {
				if n != 10 {
					t.Errorf("node %s got %d of 100 instances, want 10 (%v)", node, n, got)
				}
			}
		})
	}
}

// TestImagesDoNotAttractAllInstances: one of two nodes has the image.
func TestImagesDoNotAttractAllInstances(t *testing.T) {
	t.Parallel()
	s := NewSnapshot(Options{})
	shape := testShape(t, "w", 0, func(c *ShapeConfig) { c.Template.Containers[0].Image = "nginx:1" })
	has := testNode("has")
	has.Images = map[string]struct{}{"nginx:1": {}}
	s.SetNode(has)
	s.SetNode(testNode("lacks"))
	got := map[string]int{}
	for i := range 4 {
		d := Place(s, Request{Shape: shape})
		if i == 0 && d.Node != "has" {
			t.Errorf("the first went to %s, want the node that has the image", d.Node)
		}
		got[d.Node]++
		s.Put(Occupant{UID: fmt.Sprint(i), Shape: shape, Node: d.Node})
	}
	if got["has"] != 2 || got["lacks"] != 2 {
		t.Errorf("four instances went to %v, want two each", got)
	}
}

func TestTiesDependOnTheSalt(t *testing.T) {
	t.Parallel()
	first := map[string]bool{}
	for salt := range uint64(64) {
		s := NewSnapshot(Options{Salt: salt})
		for i := range 8 {
			s.SetNode(testNode(fmt.Sprintf("n%d", i)))
		}
		first[Place(s, Request{Shape: testShape(t, "w", 0)}).Node] = true
	}
	if len(first) < 5 {
		t.Errorf("64 salts chose only %v first", first)
	}
}

// TestPlaceFault05: the published scheduler ignored requests and affinity.
func TestPlaceFault05(t *testing.T) {
	t.Parallel()
	s := cluster(
		testNode("small", func(n *Node) { n.Allocatable.MilliCPU = 500 }),
		testNode("big", func(n *Node) { n.Allocatable.MilliCPU = 2000 }),
	)
	got := fill(s, testShape(t, "w", 500), 6)
	if got["small"] != 1 || got["big"] != 4 || got[""] != 1 {
		t.Errorf("placed %v, want 1 on small, 4 on big, 1 nowhere", got)
	}
	if d := Place(s, Request{Shape: testShape(t, "w", 500)}); d.Reason != "InsufficientCPU" {
		t.Errorf("Place() on a full cluster = %+v, want InsufficientCPU", d)
	}
}
