package splitter_test

import (
	"fmt"
	"time"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

// Split returns the next step. The caller writes it, and calls Split again when it observes the
// result.
func ExampleSplit() {
	policy, err := splitter.NewPolicy(workloadv1alpha1.PlacementPolicy{}, workloadv1alpha1.DivideReplicas)
	if err != nil {
		panic(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	state := splitter.State{
		Root:   splitter.Root{Name: "web", Replicas: 7},
		Policy: policy,
		Clusters: []splitter.Cluster{
			{Name: "east", Ready: true, Since: now.Add(-time.Hour), Serves: true},
			{Name: "west", Ready: true, Since: now.Add(-time.Hour), Serves: true},
			{Name: "north", Ready: true, Since: now.Add(-time.Hour), Serves: true, Unschedulable: true},
		},
		Now: now,
	}
	result := splitter.Split(state)
	for _, change := range result.Changes {
		fmt.Printf("%s the leaf of %s with %d replicas\n", change.Action, change.Cluster, change.To)
	}
	for _, share := range result.Explanation.Clusters {
		fmt.Printf("%s is %s: %v\n", share.Cluster, share.Standing, share.Reasons)
	}
	// Output:
	// create the leaf of east with 4 replicas
	// create the leaf of west with 3 replicas
	// east is open: [even: 1 of 2]
	// north is holding: [the cluster is unschedulable it keeps 0]
	// west is open: [even: 1 of 2]
}
