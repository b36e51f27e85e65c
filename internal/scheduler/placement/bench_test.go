package placement

import (
	"fmt"
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// BenchmarkPlace measures one decision and its Put, on clusters of two sizes.
func BenchmarkPlace(b *testing.B) {
	host := rikv1alpha1.LabelHostname
	shapes := map[string]func(b *testing.B, i int) *Shape{
		"one-shape":     oneShape(func(b *testing.B) *Shape { return testShape(b, "w", 1) }),
		"100-shapes":    manyShapes(100),
		"anti-affinity": oneShape(func(b *testing.B) *Shape { return testShape(b, "w", 1, forbid("other", host)) }),
		"host-spread":   oneShape(func(b *testing.B) *Shape { return testShape(b, "w", 1, spread(host, 1, rikv1alpha1.DoNotSchedule)) }),
		"zone-spread": oneShape(func(b *testing.B) *Shape {
			return testShape(b, "w", 1, spread(rikv1alpha1.LabelZone, 1, rikv1alpha1.DoNotSchedule))
		}),
	}
	for _, nodes := range []int{1000, 5000} {
		for name, shape := range shapes {
			b.Run(fmt.Sprintf("nodes=%d/%s", nodes, name), func(b *testing.B) { benchPlace(b, nodes, shape) })
		}
		b.Run(fmt.Sprintf("nodes=%d/new-shape-each", nodes), func(b *testing.B) { benchNewShapes(b, nodes) })
	}
}

func oneShape(make func(*testing.B) *Shape) func(*testing.B, int) *Shape {
	var shape *Shape
	return func(b *testing.B, _ int) *Shape {
		if shape == nil {
			shape = make(b)
		}
		return shape
	}
}

func manyShapes(n int) func(*testing.B, int) *Shape {
	shapes := make([]*Shape, n)
	return func(b *testing.B, i int) *Shape {
		if shapes[i%n] == nil {
			shapes[i%n] = testShape(b, fmt.Sprintf("w%d", i%n), 1)
		}
		return shapes[i%n]
	}
}

func benchCluster(nodes int) *Snapshot {
	s := NewSnapshot(Options{})
	for i := range nodes {
		s.SetNode(testNode(fmt.Sprintf("node-%05d", i), zone(fmt.Sprintf("zone-%d", i%3)), func(n *Node) {
			n.Allocatable = Resources{MilliCPU: 1 << 40, MemoryBytes: 1 << 40, DiskBytes: 1 << 40, Instances: 1 << 40}
		}))
	}
	return s
}

// benchPlace starts with an empty cluster after a million instances, to bound the memory.
func benchPlace(b *testing.B, nodes int, shape func(*testing.B, int) *Shape) {
	s := benchCluster(nodes)
	uids := make([]string, 1<<20)
	for i := range uids {
		uids[i] = fmt.Sprintf("%08x-0000-4000-8000-000000000000", i)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if i > 0 && i%len(uids) == 0 {
			b.StopTimer()
			s = benchCluster(nodes)
			b.StartTimer()
		}
		sh := shape(b, i)
		d := Place(s, Request{Shape: sh})
		if d.Node == "" {
			b.Fatalf("decision %d: %s", i, d.Message)
		}
		s.Put(Occupant{UID: uids[i%len(uids)], Shape: sh, Node: d.Node})
	}
}

// benchNewShapes measures the worst case: no two requests share a shape.
func benchNewShapes(b *testing.B, nodes int) {
	s := benchCluster(nodes)
	shapes := make([]*Shape, 2000)
	for i := range shapes {
		shapes[i] = testShape(b, fmt.Sprintf("w%d", i), 1)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		sh := shapes[i%len(shapes)]
		d := Place(s, Request{Shape: sh})
		s.Put(Occupant{UID: "x", Shape: sh, Node: d.Node})
		s.Remove("x")
		s.Forget(sh)
	}
}
