package placement_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/scheduler/placement"
)

// exampleSnapshot has two nodes, of which worker-2 is cordoned.
func exampleSnapshot() *placement.Snapshot {
	s := placement.NewSnapshot(placement.Options{})
	capacity := placement.Resources{MilliCPU: 1000, MemoryBytes: 1 << 30, DiskBytes: 10 << 30, Instances: 100}
	s.SetNode(placement.Node{Name: "worker-1", Ready: true, Allocatable: capacity})
	s.SetNode(placement.Node{Name: "worker-2", Ready: true, Unschedulable: true, Allocatable: capacity})
	return s
}

// exampleShape requests 600 millicores for each instance.
func exampleShape() *placement.Shape {
	container := rikv1alpha1.Container{Name: "web", Image: "web:1.4"}
	container.Resources.Requests = rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("600m")}
	shape, err := placement.NewShape(placement.ShapeConfig{
		Namespace: "default", Workload: "web",
		Template: &rikv1alpha1.InstanceTemplate{Containers: []rikv1alpha1.Container{container}},
	})
	if err != nil {
		panic(err)
	}
	return shape
}

// ExamplePlace shows that Place decides and changes nothing. Put makes a decision take effect.
func ExamplePlace() {
	snapshot, shape := exampleSnapshot(), exampleShape()
	for _, uid := range []string{"a", "b"} {
		decision := placement.Place(snapshot, placement.Request{UID: uid, Shape: shape})
		if decision.Node == "" {
			fmt.Printf("%s: %s: %s\n", uid, decision.Reason, decision.Message)
			continue
		}
		fmt.Printf("%s: %s\n", uid, decision.Node)
		snapshot.Put(placement.Occupant{UID: uid, Shape: shape, Node: decision.Node})
	}
	// Output:
	// a: worker-1
	// b: NodesUnschedulable: 0 of 2 nodes fit: 1 unschedulable, 1 with too little cpu
}

// ExampleExplain shows the result of the filters for each node.
func ExampleExplain() {
	explanation := placement.Explain(exampleSnapshot(), placement.Request{UID: "a", Shape: exampleShape()})
	fmt.Println(explanation.Summary)
	for _, v := range explanation.Results {
		if v.Filter != "" {
			fmt.Printf("%s rejects %s: %s\n", v.Filter, v.Node, v.Reason)
		}
	}
	// Output:
	// 1 of 2 nodes fit; worker-1 scores best
	// Unschedulable rejects worker-2: node is unschedulable
}
