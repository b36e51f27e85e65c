package controller_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// TestNoClusters tests the status of a root without clusters. It runs first and alone, because it
// needs a kcp without Clusters.
func TestNoClusters(t *testing.T) { //nolint:paralleltest // other tests register Clusters
	s := newSite(t)
	s.deploy("web", 3, nil)
	s.says("web", "Progressing", "False", "NoRegisteredClusters")
	s.until("web", "")
}

// TestDivide divides a root, sums its status up, and rescales the root.
func TestDivide(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	s.deploy("web", 10, nil)
	s.until("web", "east=5 west=5")
	s.reports("web", map[string]int64{"replicas": 10, "readyReplicas": 10, "updatedReplicas": 10, "availableReplicas": 10})
	s.says("web", "Available", "True", "MinimumReplicasAvailable")
	for _, tc := range []struct {
		replicas int64
		parts    string
	}{{7, "east=4 west=3"}, {0, "east=0 west=0"}, {1, "east=1 west=0"}, {10, "east=5 west=5"}} {
		s.change("web", map[string]any{"spec": map[string]any{"replicas": tc.replicas}})
		s.until("web", tc.parts)
		s.reports("web", map[string]int64{"replicas": tc.replicas, "readyReplicas": tc.replicas})
	}
	s.reported("web", "Divided", "0 to 5")
	s.rests("web")
}

// TestStrategyTable checks an existing root and a new one for each state of a cluster.
func TestStrategyTable(t *testing.T) {
	t.Parallel()
	past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	for name, tc := range map[string]struct {
		ready, unschedulable bool
		evict                time.Time
		there, added         string
	}{
		"not ready":                     {false, false, time.Time{}, "east=2 west=2", "east=4"},
		"not ready, evicted":            {false, false, past, "east=4 west=0", "east=4"},
		"ready, evicted":                {true, false, past, "east=4", "east=4"},
		"ready, cordoned":               {true, true, time.Time{}, "east=2 west=2", "east=4"},
		"ready, cordoned, evicted soon": {true, true, future, "east=2 west=2", "east=4"},
		"ready":                         {true, false, time.Time{}, "east=2 west=2", "east=2 west=2"},
		"ready, evicted soon":           {true, false, future, "east=2 west=2", "east=2 west=2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "east", "west")
			s.deploy("there", 4, nil)
			s.until("there", "east=2 west=2")
			spec := map[string]any{"unschedulable": tc.unschedulable}
			if !tc.evict.IsZero() {
				spec["evictAfter"] = metav1.NewTime(tc.evict)
			}
			s.merge(clusters, "", s.cluster("west"), map[string]any{"spec": spec})
			if !tc.ready {
				s.cut("west")
				s.is("west", false)
			}
			s.until("there", tc.there)
			s.deploy("added", 4, nil)
			s.until("added", tc.added)
			s.until("there", tc.there)
		})
	}
}

// TestClustersComeAndGo tests clusters that appear and disappear.
func TestClustersComeAndGo(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	s.deploy("web", 10, map[string]string{workloadv1alpha1.HintPrefix + "grace-period": "1m"})
	s.until("web", "east=5 west=5")
	s.cut("east")
	s.is("east", false, time.Hour)
	s.until("web", "east=0 west=10")
	s.reports("web", map[string]int64{"replicas": 10, "readyReplicas": 10})
	s.reported("web", "Divided", "the cluster has not been ready since")
	s.connect("east")
	s.until("web", "east=5 west=5")
	s.register("north", nil)
	s.until("web", "east=4 north=3 west=3")
	s.reports("web", map[string]int64{"replicas": 10, "readyReplicas": 10})
}

// TestHints covers case (b): hints in annotations and in a Placement.
func TestHints(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	s.deploy("web", 8, nil)
	s.until("web", "east=4 west=4")
	s.hint("web", map[string]any{workloadv1alpha1.HintPrefix + "strategy": "weighted", workloadv1alpha1.HintPrefix + "weights": "lots"})
	s.says("web", "Progressing", "False", "InvalidPlacement")
	s.reported("web", "InvalidPlacement", "weights")
	s.until("web", "east=4 west=4")
	s.hint("web", map[string]any{workloadv1alpha1.HintPrefix + "weights": s.cluster("east") + "=3"})
	s.until("web", "east=6 west=2")
	s.hint("web", map[string]any{workloadv1alpha1.HintPrefix + "strategy": nil, workloadv1alpha1.HintPrefix + "weights": nil})
	s.until("web", "east=4 west=4")
	s.says("web", "Progressing", "True", "NewReplicaSetAvailable")
	s.merge(clusters, "", s.cluster("west"), map[string]any{"spec": map[string]any{"taints": s.taints(map[string]any{"key": "disk", "effect": "NoExecute"})}})
	s.until("web", "east=8")
	s.policy("tolerations: [{key: disk, operator: Exists}]")
	s.until("web", "east=4 west=4")
}

// TestUndividedRoot covers case (f): a root that is not divided.
func TestUndividedRoot(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	s.deploy("one", 3, map[string]string{workloadv1alpha1.HintPrefix + "divide": "whole"})
	s.deploy("each", 3, map[string]string{workloadv1alpha1.HintPrefix + "divide": "everywhere"})
	s.until("one", "east=3")
	s.until("each", "east=3 west=3")
	s.reports("each", map[string]int64{"replicas": 6, "readyReplicas": 6})
	s.change("one", map[string]any{"spec": map[string]any{"replicas": 5}})
	s.until("one", "east=5")
	s.reports("one", map[string]int64{"replicas": 5})
	s.hint("one", map[string]any{workloadv1alpha1.HintPrefix + "not-clusters": workloadv1alpha1.ClusterLabel + "=" + s.cluster("east")})
	s.until("one", "west=5")
}
