package why

import (
	"bytes"
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/rikctltest"
	"rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/testkit/golden"
)

func TestWhyGolden(t *testing.T) {
	t.Parallel()
	verdicts := []*schedulerv1.NodeVerdict{
		{Name: "worker-3", RejectedBy: "Resources", Reason: "memory: 2Gi free, 4Gi wanted"},
		{Name: "worker-2", Score: 120, Scores: map[string]int64{"Spread": 80, "ImageLocality": 40}},
		{Name: "worker-1", Score: 180, Scores: map[string]int64{"Spread": 100, "ImageLocality": 80}},
	}
	unbound := rikctltest.Instance()
	unbound.Spec.NodeName, unbound.Status = "", rikv1alpha1.InstanceStatus{}
	tests := []struct {
		name string
		i    *rikv1alpha1.Instance
		e    *schedulerv1.Explanation
	}{
		{"why-bound", rikctltest.Instance(), &schedulerv1.Explanation{NodeName: "worker-1", Summary: "2 of 3 nodes fit.", Nodes: verdicts}},
		{"why-not", unbound, &schedulerv1.Explanation{Summary: "0 of 1 nodes fit: 1 Resources.", Nodes: verdicts[:1]}},
		{"why-soon", unbound, &schedulerv1.Explanation{NodeName: "worker-1", Nodes: verdicts}},
		{"why-no-nodes", unbound, &schedulerv1.Explanation{Summary: "the cluster has no nodes"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := printWhy(&out, tc.i, tc.e); err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, tc.name+".golden", out.Bytes())
		})
	}
}
