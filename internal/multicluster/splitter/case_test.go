package splitter

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/fencing"
)

type policy = workloadv1alpha1.PlacementPolicy

// rests asserts the parts that exist when nothing changes any more.
func (w *clusterSim) rests(t *testing.T, want map[string]int32, unplaced int32) {
	t.Helper()
	r := w.settle(t)
	if diff := cmp.Diff(want, w.parts()); diff != "" || r.Unplaced != unplaced {
		t.Fatalf("%d unplaced, want %d; parts (want, got):\n%s\n%s", r.Unplaced, unplaced, diff, r.Explanation)
	}
}

// TestSplitCases splits a root for clusters and replicas that change. TestAggregate covers the sum
// of statuses, and TestFollowers covers Ingresses.
func TestSplitCases(t *testing.T) {
	t.Parallel()
	type parts = map[string]int32
	two := func(t *testing.T) *clusterSim {
		w := newClusterSim(t, policy{}, 10, "us-east1", "us-west1")
		w.rests(t, parts{"us-east1": 5, "us-west1": 5}, 0)
		return w
	}
	t.Run("ten replicas over two clusters are five and five", func(t *testing.T) { two(t) })
	t.Run("a remainder goes to the first names", func(t *testing.T) {
		newClusterSim(t, policy{}, 11, "c", "a", "b").rests(t, parts{"a": 4, "b": 4, "c": 3}, 0)
	})
	t.Run("no clusters", func(t *testing.T) {
		w := newClusterSim(t, policy{}, 10)
		w.rests(t, parts{}, 10)
		if len(w.last.Explanation.Reasons) == 0 || w.last.Explanation.Reasons[0].Code != NoClusters {
			t.Errorf("%+v, want %s", w.last.Explanation.Reasons, NoClusters)
		}
	})
	t.Run("rescaled", func(t *testing.T) {
		w := two(t)
		w.Root.Replicas = 7
		w.rests(t, parts{"us-east1": 4, "us-west1": 3}, 0)
		w.Root.Replicas = 12
		w.rests(t, parts{"us-east1": 6, "us-west1": 6}, 0)
	})
	t.Run("a cluster joins", func(t *testing.T) {
		w := two(t)
		w.Clusters = append(w.Clusters, readyCluster("eu"))
		w.rests(t, parts{"eu": 3, "us-east1": 4, "us-west1": 3}, 0)
	})
	t.Run("a cluster leaves", func(t *testing.T) {
		w := two(t)
		w.remove("us-east1")
		w.rests(t, parts{"us-west1": 10}, 0)
	})
	t.Run("a leaf is deleted by hand", func(t *testing.T) {
		w := two(t)
		w.leaf("us-east1").Deleting = true
		if r := w.split(); len(r.Changes) > 0 {
			t.Errorf("%+v, want it to wait until the leaf is gone", r.Changes)
		}
		w.rests(t, parts{"us-east1": 5, "us-west1": 5}, 0)
	})
	t.Run("a leaf is changed by hand", func(t *testing.T) {
		w := two(t)
		w.leaf("us-east1").Replicas = 50
		w.rests(t, parts{"us-east1": 5, "us-west1": 5}, 0)
	})
	t.Run("a cluster that is not ready gets nothing", func(t *testing.T) {
		w := newClusterSim(t, policy{}, 10, "a", "b")
		w.lose("a")
		w.rests(t, parts{"b": 10}, 0)
	})
	t.Run("no replicas", func(t *testing.T) {
		w := two(t)
		w.Root.Replicas = 0
		w.rests(t, parts{"us-east1": 0, "us-west1": 0}, 0)
	})
	t.Run("fewer replicas than clusters", func(t *testing.T) {
		newClusterSim(t, policy{}, 2, "a", "b", "c").rests(t, parts{"a": 1, "b": 1}, 0)
	})
	t.Run("a cluster is lost and returns", func(t *testing.T) {
		w := two(t)
		w.lose("us-east1")
		w.rests(t, parts{"us-east1": 5, "us-west1": 5}, 0)
		w.Now = w.last.Next
		w.rests(t, parts{"us-east1": 0, "us-west1": 10}, 0)
		w.back("us-east1")
		w.rests(t, parts{"us-east1": 5, "us-west1": 5}, 0)
	})
}

// TestStrategyTable tests each state of a cluster: what happens to the parts there, and whether the
// cluster gets new ones. A future eviction needs another look at that time.
func TestStrategyTable(t *testing.T) {
	t.Parallel()
	past, future := start.Add(-time.Minute), start.Add(time.Minute)
	for name, tc := range map[string]struct {
		change      func(*Cluster)
		keeps, gets bool
		next        time.Time
	}{
		"not ready":                     {change: func(c *Cluster) { c.Ready = false }},
		"not ready, grace":              {change: func(c *Cluster) { c.Ready, c.Since = false, past }, keeps: true, next: past.Add(DefaultGracePeriod)},
		"not ready, evicted":            {change: func(c *Cluster) { c.Ready, c.Since, c.EvictAfter = false, past, past }},
		"ready, evicted":                {change: func(c *Cluster) { c.EvictAfter = past }},
		"ready, unschedulable":          {change: func(c *Cluster) { c.Unschedulable = true }, keeps: true},
		"unschedulable, evicted later":  {change: func(c *Cluster) { c.Unschedulable, c.EvictAfter = true, future }, keeps: true, next: future},
		"ready":                         {change: func(*Cluster) {}, keeps: true, gets: true},
		"ready, evicted later":          {change: func(c *Cluster) { c.EvictAfter = future }, keeps: true, gets: true, next: future},
		"ready, not to be executed":     {change: func(c *Cluster) { c.Taints = []workloadv1alpha1.ClusterTaint{{Key: "a", Effect: "NoExecute"}} }},
		"ready, not to be scheduled":    {change: func(c *Cluster) { c.Taints = []workloadv1alpha1.ClusterTaint{{Key: "a", Effect: "NoSchedule"}} }, keeps: true},
		"ready, taint tolerated":        {change: func(c *Cluster) { c.Taints = []workloadv1alpha1.ClusterTaint{{Key: "ok", Effect: "NoExecute"}} }, keeps: true, gets: true},
		"ready, type not carried":       {change: func(c *Cluster) { c.Serves = false }, keeps: true},
		"type gone, grace":              {change: func(c *Cluster) { c.Missing = past }, keeps: true, next: past.Add(DefaultGracePeriod)},
		"type gone":                     {change: func(c *Cluster) { c.Missing = past.Add(-DefaultGracePeriod) }},
		"the same physical cluster":     {change: func(c *Cluster) { c.SameAs = "b" }, keeps: true},
		"ready, not selected":           {change: func(c *Cluster) { c.Labels = map[string]string{"tier": "none"} }},
		"ready, selected and forbidden": {change: func(c *Cluster) { c.Labels = map[string]string{"bad": "yes"} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wish := policy{
				Clusters:    &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"none"}}}},
				NotClusters: &metav1.LabelSelector{MatchLabels: map[string]string{"bad": "yes"}},
				Tolerations: []workloadv1alpha1.ClusterToleration{{Key: "ok", Operator: workloadv1alpha1.TolerationExists}},
			}
			scheduled := newClusterSim(t, wish, 10, "a", "b")
			scheduled.settle(t)
			tc.change(scheduled.cluster("a"))
			if r := scheduled.settle(t); (scheduled.parts()["a"] == 5) != tc.keeps || !r.Next.Equal(tc.next) {
				t.Errorf("it has %d of 5, next look %v; want it to keep them: %v, next %v\n%s", scheduled.parts()["a"], r.Next, tc.keeps, tc.next, r.Explanation)
			}
			fresh := newClusterSim(t, wish, 10, "a", "b")
			tc.change(fresh.cluster("a"))
			if fresh.settle(t); (fresh.parts()["a"] == 5) != tc.gets {
				t.Errorf("it got %d, want 5: %v\n%s", fresh.parts()["a"], tc.gets, fresh.last.Explanation)
			}
		})
	}
}

func TestStrategies(t *testing.T) {
	t.Parallel()
	type parts = map[string]int32
	weights := []workloadv1alpha1.ClusterWeight{{Cluster: "a", Weight: 3}, {Cluster: "d", Weight: 0}}
	for name, tc := range map[string]struct {
		policy policy
		change func(*clusterSim)
		want   parts
	}{
		"even":     {want: parts{"a": 3, "b": 3, "c": 2, "d": 2}},
		"weighted": {policy: policy{Strategy: workloadv1alpha1.StrategyWeighted, Weights: weights}, want: parts{"a": 6, "b": 2, "c": 2}},
		"capacity by requests": {policy: policy{Strategy: workloadv1alpha1.StrategyCapacity}, change: func(w *clusterSim) {
			w.Root.Requests = corev1.ResourceList{"memory": resource.MustParse("1Gi")}
		}, want: parts{"a": 1, "b": 2, "c": 3, "d": 4}},
		"capacity by CPUs": {policy: policy{Strategy: workloadv1alpha1.StrategyCapacity}, want: parts{"a": 4, "b": 3, "c": 2, "d": 1}},
		"spread":           {policy: policy{Strategy: workloadv1alpha1.StrategySpread, TopologyKey: "region"}, want: parts{"a": 2, "b": 2, "c": 1, "d": 5}},
		"spread by weights": {policy: policy{Strategy: workloadv1alpha1.StrategySpread, TopologyKey: "region", Weights: weights[:1]},
			want: parts{"a": 3, "b": 1, "c": 1, "d": 5}},
		"whole": {policy: policy{Divide: workloadv1alpha1.DivideWhole}, want: parts{"a": 1}},
		"everywhere but one": {policy: policy{Divide: workloadv1alpha1.DivideEverywhere}, change: func(w *clusterSim) { w.cluster("b").Unschedulable = true },
			want: parts{"a": 1, "c": 1, "d": 1}},
		"selected by name": {policy: policy{Clusters: &metav1.LabelSelector{MatchLabels: map[string]string{workloadv1alpha1.ClusterLabel: "c"}}}, want: parts{"c": 10}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newClusterSim(t, tc.policy, 10, "a", "b", "c", "d")
			for i := range w.Clusters {
				c := &w.Clusters[i]
				c.Allocatable = corev1.ResourceList{
					"cpu":    *resource.NewQuantity(int64(4-i), resource.DecimalSI),
					"memory": *resource.NewQuantity(int64(i+1)<<30, resource.BinarySI),
				}
				c.Labels = map[string]string{"region": "west"}
			}
			w.cluster("d").Labels["region"] = "east"
			if tc.change != nil {
				tc.change(w)
			}
			w.rests(t, tc.want, 0)
		})
	}
}

// TestMoves tests rollbacks and moves step by step. It checks the parts after each split and
// changes the clusters in between.
func TestMoves(t *testing.T) {
	t.Parallel()
	t.Run("nothing is taken away before its replacement is ready", func(t *testing.T) {
		w := newClusterSim(t, policy{MaxSurge: surgeOf(2)}, 8, "a")
		w.settle(t)
		w.Clusters = append(w.Clusters, readyCluster("b"))
		for _, want := range []string{"map[a:8 b:2]", "map[a:8 b:2]"} {
			w.expect(t, want)
			w.deliver("b")
			w.report("b")
		}
		w.run("b", 1)
		w.report("b")
		w.expect(t, "map[a:7 b:2]") // one is ready, so one may stop
		w.run("b", 1)
		w.report("b")
		w.expect(t, "map[a:6 b:2]")
		w.expect(t, "map[a:6 b:2]") // the cluster has not confirmed the stop yet
		w.rests(t, map[string]int32{"a": 4, "b": 4}, 0)
	})
	t.Run("without a surge it is taken away first, and seen to be gone", func(t *testing.T) {
		w := newClusterSim(t, policy{MaxSurge: surgeOf(0), MaxMoves: &workloadv1alpha1.MoveLimit{Count: 1}}, 4, "a")
		w.settle(t)
		w.Clusters = append(w.Clusters, readyCluster("b"))
		w.expect(t, "map[a:3]")
		w.expect(t, "map[a:3]")
		w.deliver("a")
		w.run("a", 1)
		w.report("a")
		w.expect(t, "map[a:3 b:1]")
		w.settle(t)
		w.expect(t, "map[a:3 b:1]") // one move in ten minutes
		w.Now = w.last.Next
		w.rests(t, map[string]int32{"a": 2, "b": 2}, 0)
	})
	t.Run("a smaller part takes effect at once, ready or not", func(t *testing.T) {
		w := newClusterSim(t, policy{}, 8, "a", "b")
		w.broken["b"] = true
		w.settle(t)
		w.Root.Replicas = 2
		w.expect(t, "map[a:1 b:1]")
	})
	t.Run("moves wait while replacements do not become ready", func(t *testing.T) {
		w := newClusterSim(t, policy{MaxSurge: surgeOf(1)}, 4, "a")
		w.settle(t)
		w.Clusters = append(w.Clusters, readyCluster("b"))
		w.broken["b"] = true
		w.rests(t, map[string]int32{"a": 4, "b": 1}, 0)
		w.explains(t, WaitsForReady)
		delete(w.broken, "b")
		w.rests(t, map[string]int32{"a": 2, "b": 2}, 0)
	})
	t.Run("moves that were begun with a surge end without one", func(t *testing.T) {
		w := newClusterSim(t, policy{MaxSurge: surgeOf(2)}, 8, "a")
		w.settle(t)
		w.Clusters = append(w.Clusters, readyCluster("b"))
		w.expect(t, "map[a:8 b:2]")
		w.Policy = newPolicy(t, policy{MaxSurge: surgeOf(0)})
		w.expect(t, "map[a:8 b:2]")
		w.rests(t, map[string]int32{"a": 4, "b": 4}, 0)
	})
	t.Run("an evicted cluster is left step by step, and its leaf goes", func(t *testing.T) {
		w := newClusterSim(t, policy{MaxSurge: surgeOf(1)}, 4, "a", "b")
		w.settle(t)
		w.cluster("a").EvictAfter = start.Add(-time.Second)
		w.expect(t, "map[a:2 b:3]")
		w.rests(t, map[string]int32{"b": 4}, 0)
	})
	t.Run("an evicted cluster loses all where nothing takes it", func(t *testing.T) {
		w := newClusterSim(t, policy{}, 4, "a")
		w.settle(t)
		w.cluster("a").EvictAfter = start.Add(-time.Second)
		w.rests(t, map[string]int32{}, 4)
		w.explains(t, NothingTakesParts)
	})
	t.Run("cordoned clusters keep what they have, and shrink with the others", func(t *testing.T) {
		w := newClusterSim(t, policy{MaxSurge: surgeOf(1)}, 10, "a", "b")
		w.settle(t)
		w.cluster("a").Unschedulable = true
		w.rests(t, map[string]int32{"a": 5, "b": 5}, 0)
		w.Root.Replicas = 20
		w.rests(t, map[string]int32{"a": 5, "b": 15}, 0)
		w.Root.Replicas = 4
		w.rests(t, map[string]int32{"a": 2, "b": 2}, 0)
		w.cluster("b").Unschedulable = true
		w.Root.Replicas = 6
		w.rests(t, map[string]int32{"a": 2, "b": 2}, 2)
	})
	t.Run("regions have the same with what cordoned clusters hold", func(t *testing.T) {
		w := newClusterSim(t, policy{Strategy: workloadv1alpha1.StrategySpread, TopologyKey: "region"}, 4, "a")
		w.settle(t)
		w.cluster("a").Unschedulable = true
		w.Clusters = append(w.Clusters, readyCluster("b"), readyCluster("c"))
		w.cluster("c").Labels = map[string]string{"region": "other"}
		w.Root.Replicas = 10
		w.rests(t, map[string]int32{"a": 4, "b": 1, "c": 5}, 0)
		w.Root.Replicas = 9
		w.rests(t, map[string]int32{"a": 4, "b": 1, "c": 4}, 0)
	})
	t.Run("what shrinks leaves evicted clusters first", func(t *testing.T) {
		w := newClusterSim(t, policy{}, 8, "a", "b")
		w.settle(t)
		w.cluster("b").EvictAfter = start.Add(-time.Second)
		w.Clusters = append(w.Clusters, readyCluster("c"))
		w.Root.Replicas = 4
		w.split()
		if r := w.last; len(r.Changes) == 0 || w.parts()["b"] != 0 {
			t.Errorf("%+v, want all to leave b first\n%s", r.Changes, r.Explanation)
		}
	})
	t.Run("a whole root is never in two clusters", func(t *testing.T) {
		w := newClusterSim(t, policy{Divide: workloadv1alpha1.DivideWhole}, 0, "a", "b")
		w.settle(t)
		w.cluster("a").EvictAfter = start.Add(-time.Second)
		w.expect(t, "map[]")
		w.expect(t, "map[]")
		w.rests(t, map[string]int32{"b": 1}, 0)
	})
	t.Run("the replicas of an autoscaler are not changed", func(t *testing.T) {
		w := newClusterSim(t, policy{}, 10, "a", "b")
		w.settle(t)
		w.leaf("a").Autoscaled, w.leaf("a").Replicas = true, 9
		w.rests(t, map[string]int32{"a": 9, "b": 5}, 0)
		w.Root.Replicas = 20
		w.rests(t, map[string]int32{"a": 9, "b": 10}, 0)
		w.cluster("a").EvictAfter = start.Add(-time.Second)
		w.rests(t, map[string]int32{"b": 20}, 0)
	})
	t.Run("data is not left behind", func(t *testing.T) {
		w := newClusterSim(t, policy{}, 4, "a")
		w.settle(t)
		w.leaf("a").Bound = true
		w.Clusters = append(w.Clusters, readyCluster("b"))
		w.cluster("a").EvictAfter = start.Add(-time.Second)
		w.rests(t, map[string]int32{"a": 4}, 0)
		w.explains(t, DataHere)
		w.explains(t, DataElsewhere)
		w.remove("a")
		w.rests(t, map[string]int32{"a": 4}, 4) // the leaf stays to record where the data was
		w.explains(t, DataLeft)
		w.forget("a")
		w.rests(t, map[string]int32{"b": 4}, 0)
	})
	t.Run("finished work is not moved and does not run again", func(t *testing.T) {
		w := newClusterSim(t, policy{Divide: workloadv1alpha1.DivideWhole}, 1, "a")
		w.settle(t)
		w.leaf("a").Finished = true
		w.Clusters = append(w.Clusters, readyCluster("b"))
		w.cluster("a").Ready, w.cluster("a").Since = false, start.Add(-time.Hour)
		w.rests(t, map[string]int32{"a": 1}, 0)
		w.explains(t, FinishedHere)
		w.explains(t, FinishedElsewhere)
		w.cluster("a").EvictAfter = start.Add(-time.Second)
		w.rests(t, map[string]int32{"a": 1}, 0)
		w.remove("a")
		w.expect(t, "map[a:1]")
		w.Root.Finished = true
		w.forget("a")
		w.expect(t, "map[]") // only the root's own status is left
	})
	t.Run("what is everywhere finishes in each cluster", func(t *testing.T) {
		w := newClusterSim(t, policy{Divide: workloadv1alpha1.DivideEverywhere}, 1, "a")
		w.settle(t)
		w.leaf("a").Finished = true
		w.Clusters = append(w.Clusters, readyCluster("b"))
		w.cluster("a").EvictAfter = start.Add(-time.Second)
		w.rests(t, map[string]int32{"a": 1, "b": 1}, 0)
	})
	t.Run("a cluster that is being removed is left as it is", func(t *testing.T) {
		w := newClusterSim(t, policy{}, 4, "a", "b")
		w.settle(t)
		w.cluster("a").Removing = true
		w.expect(t, "map[a:2 b:4]")
		w.remove("a")
		w.expect(t, "map[b:4]")
	})
}

// TestFence tests a fenced root whose cluster is disconnected.
func TestFence(t *testing.T) {
	t.Parallel()
	fence := &metav1.Duration{Duration: 30 * time.Second}
	newFenced := func(t *testing.T) *clusterSim {
		w := newClusterSim(t, policy{FenceAfter: fence, MaxSurge: surgeOf(0), GracePeriod: &metav1.Duration{Duration: 20 * time.Second}}, 10, "a", "b")
		w.Root.TerminationGrace = 15 * time.Second
		w.settle(t)
		return w
	}
	t.Run("replaced when it must have stopped", func(t *testing.T) {
		w := newFenced(t)
		w.lose("a")
		w.rests(t, map[string]int32{"a": 5, "b": 5}, 0)
		w.Now = w.last.Next // the grace period is over
		w.rests(t, map[string]int32{"a": 0, "b": 5}, 0)
		w.explains(t, WaitsForFence)
		if want := fencing.Replaceable(start, 30*time.Second, 15*time.Second); !w.last.Next.Equal(want) {
			t.Fatalf("next look at %v, want %v", w.last.Next, want)
		}
		w.Now = w.last.Next.Add(-1)
		w.rests(t, map[string]int32{"a": 0, "b": 5}, 0)
		w.Now = w.Now.Add(1)
		w.rests(t, map[string]int32{"a": 0, "b": 10}, 0)
	})
	t.Run("never while its syncer sends heartbeats", func(t *testing.T) {
		w := newFenced(t)
		w.lose("a")
		w.cluster("a").Silent = time.Time{}
		w.Now = start.Add(time.Hour)
		w.rests(t, map[string]int32{"a": 0, "b": 5}, 0)
	})
	t.Run("a removed cluster counts from when that was seen", func(t *testing.T) {
		w := newFenced(t)
		w.remove("a")
		w.rests(t, map[string]int32{"a": 5, "b": 5}, 0)
		w.Now = w.last.Next
		w.rests(t, map[string]int32{"b": 10}, 0)
	})
	t.Run("clusters that cannot fence have no part", func(t *testing.T) {
		w := newClusterSim(t, policy{FenceAfter: fence}, 10, "a", "b")
		w.cluster("a").Fences = false
		w.rests(t, map[string]int32{"b": 10}, 0)
		w.explains(t, CannotFence)
	})
	t.Run("a root without a fence is replaced after the grace period", func(t *testing.T) {
		w := newClusterSim(t, policy{MaxSurge: surgeOf(0)}, 10, "a", "b")
		w.settle(t)
		w.lose("a")
		w.Now = start.Add(DefaultGracePeriod)
		w.rests(t, map[string]int32{"a": 0, "b": 10}, 0)
	})
}

func (w *clusterSim) expect(t *testing.T, want string) {
	t.Helper()
	r := w.split()
	if got := fmt.Sprint(w.parts()); got != want {
		t.Fatalf("parts %s, want %s\n%s", got, want, r.Explanation)
	}
}

// explains asserts that the explanation contains a reason and can be formatted.
func (w *clusterSim) explains(t *testing.T, code Code) {
	t.Helper()
	e := w.last.Explanation
	reasons := e.Reasons
	for _, s := range e.Clusters {
		reasons = append(reasons, s.Reasons...)
	}
	for _, r := range reasons {
		if r.Code == code {
			if r.String() == "" || strings.Contains(r.String(), "%") || !strings.Contains(e.String(), r.String()) {
				t.Errorf("%s reads %q in\n%s", code, r, e)
			}
			return
		}
	}
	t.Errorf("no %s in %s", code, e)
}

// TestExplanation tests the text for users.
func TestExplanation(t *testing.T) {
	t.Parallel()
	w := newClusterSim(t, policy{}, 7, "a", "b", "c")
	w.settle(t)
	w.lose("a")
	w.Now = start.Add(DefaultGracePeriod)
	w.cluster("b").Unschedulable = true
	w.split()
	want := `web: 7, divide replicas, strategy even
  a: 0 (has 3, next 0), out: the cluster has not been ready since 2026-01-02T03:04:05Z
  b: 2, holding: the cluster is unschedulable; it keeps 2
  c: 5 (has 2, next 5), open: even: 1 of 1
`
	if got := w.last.Explanation.String(); got != want {
		t.Errorf("it reads\n%swant\n%s", got, want)
	}
}

func TestKindOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		group, kind string
		scalable    bool
		want        workloadv1alpha1.Division
	}{
		{"apps", "Deployment", true, workloadv1alpha1.DivideReplicas},
		{"apps", "ReplicaSet", true, workloadv1alpha1.DivideReplicas},
		{"apps", "StatefulSet", true, workloadv1alpha1.DivideWhole},
		{"apps", "DaemonSet", false, workloadv1alpha1.DivideEverywhere},
		{"batch", "Job", false, workloadv1alpha1.DivideWhole},
		{"batch", "CronJob", false, workloadv1alpha1.DivideWhole},
		{"example.com", "Shop", true, workloadv1alpha1.DivideReplicas},
		{"example.com", "Database", false, workloadv1alpha1.DivideWhole},
	} {
		if got := KindOf(schema.GroupKind{Group: tc.group, Kind: tc.kind}, tc.scalable); got != tc.want {
			t.Errorf("KindOf(%s.%s, %v) = %s, want %s", tc.kind, tc.group, tc.scalable, got, tc.want)
		}
	}
}

// TestEveryReasonHasAText tests that every code has a text.
func TestEveryReasonHasAText(t *testing.T) {
	t.Parallel()
	for code := range texts {
		r := Reason{Code: code, Number: 3, Of: 4, Name: "x", At: start}
		if text := r.String(); text == "" || strings.Contains(text, "%") || strings.Contains(text, "!") {
			t.Errorf("%s reads %q", code, text)
		}
	}
}

// TestAllLost tests that losing the heartbeat of all clusters does not stop what runs in them. No
// other cluster would run it instead.
func TestAllLost(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]policy{
		"replicas":   {},
		"fenced":     {FenceAfter: &metav1.Duration{Duration: time.Minute}},
		"everywhere": {Divide: workloadv1alpha1.DivideEverywhere},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newClusterSim(t, p, 7, "a", "b")
			w.settle(t)
			had := w.parts()
			stays := func() {
				t.Helper()
				w.rests(t, had, 0)
				for _, name := range []string{"a", "b"} {
					if d := w.down(name); d.want != had[name] {
						t.Fatalf("%s has %d replicas, want %d", name, d.want, had[name])
					}
				}
			}
			w.lose("a")
			w.lose("b")
			w.Now = w.Now.Add(time.Hour)
			stays()
			if p.Divide == "" && w.last.Stranded != 7 {
				t.Errorf("%d are stranded, want all", w.last.Stranded)
			}
			w.back("a") // the other one returns a moment later
			stays()
			w.Now = w.Now.Add(time.Second)
			w.back("b")
			stays()
			if w.last.Stranded != 0 {
				t.Errorf("%d are stranded, want none", w.last.Stranded)
			}
		})
	}
	t.Run("one stays away", func(t *testing.T) {
		t.Parallel()
		w := newClusterSim(t, policy{}, 7, "a", "b")
		w.settle(t)
		w.lose("a")
		w.lose("b")
		w.Now = w.Now.Add(time.Hour)
		w.settle(t)
		w.back("a")
		w.settle(t)
		if w.last.Next != w.Now.Add(returnTime) {
			t.Errorf("it looks again at %v", w.last.Next)
		}
		w.Now = w.last.Next
		w.rests(t, map[string]int32{"a": 7, "b": 0}, 0)
	})
}

// TestForgedProgress tests that Split terminates for any content of the progress annotation. A
// user who may write a root may also write that annotation.
func TestForgedProgress(t *testing.T) {
	t.Parallel()
	policy, err := NewPolicy(workloadv1alpha1.PlacementPolicy{MaxMoves: &workloadv1alpha1.MoveLimit{Count: 1}}, workloadv1alpha1.DivideReplicas)
	if err != nil {
		t.Fatal(err)
	}
	const most = math.MaxInt32
	for _, forged := range []Progress{
		{Surged: -1}, {Surged: math.MinInt32}, {Surged: most}, {Moves: math.MinInt32}, {Moves: most},
		{Since: start.Add(1e6 * time.Hour), Moves: 5, Surged: -1},
	} {
		st := State{
			Root: Root{Name: "web", Replicas: most}, Policy: policy, Progress: forged, Now: start,
			Clusters: []Cluster{{Name: "east", Ready: true, Serves: true}, {Name: "west", Ready: true, Serves: true}},
			Leaves: []Leaf{
				{Cluster: "east", Replicas: 3, Running: 10, Ready: 10},
				{Cluster: "west", Replicas: most - 3, Running: 5, Ready: most - 3, Settled: true},
			},
		}
		r := Split(st)
		if r.Unplaced != 0 || r.Progress.Surged < 0 {
			t.Errorf("after %+v: %+v", forged, r)
		}
	}
}

// TestRefusedWhole tests that an undivided root which a cluster refuses goes to another cluster
// that accepts it. It stays there. It stays where it is if no cluster accepts it, and it does not
// move back and forth.
func TestRefusedWhole(t *testing.T) {
	t.Parallel()
	whole := policy{Divide: workloadv1alpha1.DivideWhole}
	// refuse lets clusters refuse their leaf, and returns the clusters that have a leaf.
	refuse := func(w *clusterSim, names ...string) []string {
		var has []string
		for i := range w.Leaves {
			l := &w.Leaves[i]
			l.Running = 1 // as ReadLeaf reads a leaf that is not divided
			if slices.Contains(names, l.Cluster) {
				l.Refused, l.Never = true, true
			}
			if !l.Deleting {
				has = append(has, l.Cluster)
			}
		}
		w.Leaves = slices.DeleteFunc(w.Leaves, func(l Leaf) bool { return l.Deleting })
		return has
	}
	// moves counts the leaves that are created in some hours.
	moves := func(w *clusterSim, hours int, names ...string) map[string]int {
		made, end := map[string]int{}, w.Now.Add(time.Duration(hours)*time.Hour)
		for range 10_000 {
			for _, c := range w.split().Changes {
				if c.Action == Create {
					made[c.Cluster]++
				}
			}
			refuse(w, names...)
			if len(w.last.Changes) > 0 {
				continue
			}
			if w.last.Next.IsZero() || w.last.Next.After(end) {
				w.Now = end
				return made
			}
			w.Now = w.last.Next
		}
		t.Error("it does not come to rest")
		return made
	}
	for name, tc := range map[string]struct {
		policy  policy
		refused []string
		change  func(*clusterSim)
		want    []string
		made    map[string]int
		code    Code
	}{
		"one refuses":   {refused: []string{"a"}, want: []string{"b"}, made: map[string]int{"a": 1, "b": 1}, code: RefusedBefore},
		"two refuse":    {refused: []string{"a", "b"}, want: []string{"c"}, made: map[string]int{"a": 1, "b": 1, "c": 1}, code: RefusedBefore},
		"all refuse":    {refused: []string{"a", "b", "c"}, want: nil, made: map[string]int{"a": 19, "b": 19, "c": 19}, code: RefusedEverywhere},
		"one is chosen": {refused: []string{"a"}, change: func(w *clusterSim) { w.cluster("b").Unschedulable, w.cluster("c").Unschedulable = true, true }, want: []string{"a"}, made: map[string]int{"a": 1}, code: RefusedEverywhere},
		// A cluster with more room does not get the root back while another cluster runs it.
		"the better one refuses": {policy: policy{Divide: workloadv1alpha1.DivideWhole, Strategy: workloadv1alpha1.StrategyWeighted,
			Weights: []workloadv1alpha1.ClusterWeight{{Cluster: "a", Weight: 100}}}, refused: []string{"a"}, want: []string{"b"}, made: map[string]int{"a": 1, "b": 1}, code: RefusedBefore},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := whole
			if tc.policy.Divide != "" {
				p = tc.policy
			}
			w := newClusterSim(t, p, 1, "a", "b", "c")
			if tc.change != nil {
				tc.change(w)
			}
			made := moves(w, 3, tc.refused...)
			for name, n := range made {
				if want := tc.made[name]; n > want || want == 1 && n != 1 {
					t.Errorf("%s was tried %d times, want %d", name, n, want)
				}
			}
			has := refuse(w)
			if tc.want != nil && !slices.Equal(has, tc.want) || len(has) != 1 {
				t.Errorf("it is in %v, want %v", has, tc.want)
			}
			if !strings.Contains(w.last.Explanation.String(), texts[tc.code][:20]) || (w.last.Refused != "") != (tc.code == RefusedEverywhere) {
				t.Errorf("refused in %q, explained as\n%s", w.last.Refused, w.last.Explanation)
			}
		})
	}
	for name, change := range map[string]func(*Leaf){
		"its data is there": func(l *Leaf) { l.Bound = true },
		"it has finished":   func(l *Leaf) { l.Finished = true },
		"it has run there":  func(l *Leaf) { l.Never = false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newClusterSim(t, whole, 1, "a", "b")
			w.split()
			l := w.leaf("a")
			l.Running, l.Refused, l.Never = 1, true, true
			change(l)
			if r := w.split(); len(r.Changes) > 0 || r.Progress.Refused != "" {
				t.Errorf("changes are %+v, refusals %q", r.Changes, r.Progress.Refused)
			}
		})
	}
	t.Run("the cluster that runs it is lost", func(t *testing.T) {
		t.Parallel()
		w := newClusterSim(t, whole, 1, "a", "b")
		moves(w, 1, "a")
		w.cluster("b").EvictAfter = w.Now.Add(-time.Minute)
		moves(w, 1)
		if has := refuse(w); !slices.Equal(has, []string{"a"}) {
			t.Errorf("it is in %v, want a", has)
		}
	})
	t.Run("a forged progress", func(t *testing.T) {
		t.Parallel()
		for _, forged := range []string{"a=", "=", ",,a=2026", "a=9999-01-01T00:00:00Z", strings.Repeat("x=2020-01-01T00:00:00Z,", 1000)} {
			w := newClusterSim(t, whole, 1, "a", "b")
			w.Progress.Refused = forged
			if r := w.split(); r.Unplaced != 0 || r.Progress.Refused != "" {
				t.Errorf("with %.20q: %+v", forged, r)
			}
		}
	})
}

// TestRefusedParts tests that parts which a cluster refuses run in other clusters, and that the
// splitter tries the cluster again later.
func TestRefusedParts(t *testing.T) {
	t.Parallel()
	type parts = map[string]int32
	t.Run("it takes nothing", func(t *testing.T) {
		t.Parallel()
		w := newClusterSim(t, policy{}, 10, "a", "b")
		w.cut["a"] = w.Now // its syncer answers, and reports that the leaf is refused
		w.split()
		refuse := func() {
			l := w.leaf("a")
			l.Refused, l.Never, l.Settled = l.Replicas > 0, l.Replicas > 0, l.Replicas == 0
		}
		refuse()
		w.rests(t, parts{"a": 0, "b": 10}, 0)
		if want := w.Now.Add(refusedRetry); !w.last.Next.Equal(want) {
			t.Errorf("the next look is at %v, want %v", w.last.Next, want)
		}
		refuse()
		w.rests(t, parts{"a": 0, "b": 10}, 0)
		w.Now = w.last.Next
		for range 20 {
			w.split()
			refuse()
			w.deliver("b")
			w.run("b", 1<<30)
			w.report("b")
		}
		w.rests(t, parts{"a": 0, "b": 10}, 0)
		w.Now = w.last.Next
		delete(w.cut, "a")
		w.rests(t, parts{"a": 5, "b": 5}, 0)
	})
	t.Run("it takes no more", func(t *testing.T) {
		t.Parallel()
		w := newClusterSim(t, policy{}, 4, "a", "b")
		w.rests(t, parts{"a": 2, "b": 2}, 0)
		w.Root.Replicas = 10
		w.cut["a"] = w.Now
		w.split()
		w.leaf("a").Refused = true
		w.split()
		w.leaf("a").Refused = false
		delete(w.cut, "a")
		w.rests(t, parts{"a": 2, "b": 8}, 0)
		w.Now = w.last.Next
		w.rests(t, parts{"a": 5, "b": 5}, 0)
	})
	t.Run("no other cluster accepts it", func(t *testing.T) {
		t.Parallel()
		w := newClusterSim(t, policy{}, 4, "a")
		w.cut["a"] = w.Now
		w.split()
		w.leaf("a").Refused, w.leaf("a").Never = true, true
		w.rests(t, parts{"a": 0}, 4)
	})
}
