package e2e

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// strategyTable tests the prototype's table for cordoned, evicted and lost clusters, with two
// rik clusters. It checks what west keeps of an existing root, and what it gets of a new one.
func strategyTable(c *splitCase) {
	past, future := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	for _, tc := range []struct {
		name          string
		unschedulable bool
		evict         time.Time
		cut           bool
		keeps, gets   bool
	}{
		{name: "ready", keeps: true, gets: true},
		{name: "ready, evicted later", evict: future, keeps: true, gets: true},
		{name: "ready, unschedulable", unschedulable: true, keeps: true},
		{name: "ready, unschedulable, evicted later", unschedulable: true, evict: future, keeps: true},
		{name: "ready, evicted", evict: past},
		{name: "not ready", cut: true},
		{name: "not ready, evicted", cut: true, evict: past},
	} {
		c.tb.(*testing.T).Run(tc.name, func(t *testing.T) {
			c := &splitCase{fleet: c.in(t), namespace: c.namespace, below: c.below}
			hints := map[string]string{"clusters": onRik, "grace-period": "1s"}
			c.why("deployment/old")
			c.why("deployment/new")
			c.deploy("old", 2, hints)
			both, east := parts{"east": 1, "west": 1}, parts{"east": 2}
			c.rests("old", both)
			c.setWest(tc.unschedulable, tc.evict, tc.cut)
			c.deploy("new", 2, hints)
			c.divided("new", map[bool]parts{true: both, false: east}[tc.gets])
			c.restsAside("old", map[bool]parts{true: both, false: east}[tc.keeps])
			c.setWest(false, time.Time{}, false)
			c.awaitCluster("west", metav1.ConditionTrue)
			c.divided("old", both)
			c.divided("new", both)
			c.remove("old", "new")
		})
	}
}

// setWest sets the spec of the cluster west, and whether it is disconnected.
func (c *splitCase) setWest(unschedulable bool, evict time.Time, cut bool) {
	c.tb.Helper()
	at := "null"
	if !evict.IsZero() {
		at = fmt.Sprintf("%q", evict.UTC().Format(time.RFC3339))
	}
	c.patchCluster("west", fmt.Sprintf(`{"spec":{"unschedulable":%v,"evictAfter":%s}}`, unschedulable, at))
	if cut {
		c.site["west"].Unplug()
		c.awaitCluster("west", metav1.ConditionFalse)
	} else {
		c.site["west"].Plug()
	}
}

// restsAside waits until a root is split as wanted and the parts that count are ready. A lost
// cluster keeps its leaf with 0 replicas until it has reported that nothing runs there.
func (c *splitCase) restsAside(name string, want parts) {
	c.tb.Helper()
	c.divided(name, want)
	c.eventually(func() error {
		leaves, err := c.leaves(deployments, name)
		if err != nil {
			return err
		}
		for cluster, n := range want {
			if got, _, _ := unstructured.NestedInt64(leaves[cluster].Object, "status", "readyReplicas"); got != int64(n) {
				return fmt.Errorf("%d of %s are ready in %s, want %d", got, name, cluster, n)
			}
		}
		return nil
	})
}

// notReady tests that a disconnected cluster keeps its parts for a grace period, and then loses
// them. When the cluster comes back, its running replicas count, and are then removed.
func notReady(c *splitCase) {
	c.why("deployment/web")
	c.deploy("web", 4, map[string]string{"clusters": onRik, "grace-period": "20s"})
	both := parts{"east": 2, "west": 2}
	c.rests("web", both)
	c.site["west"].Unplug()
	defer c.site["west"].Plug()
	c.awaitCluster("west", metav1.ConditionFalse)
	if err := c.isDivided("web", both); err != nil {
		c.tb.Errorf("within the grace period: %v", err)
	}
	c.restsAside("web", parts{"east": 4})
	leaves, err := c.leaves(deployments, "web")
	if err != nil {
		c.tb.Fatal(err)
	}
	if leaves["west"] == nil {
		c.tb.Error("the leaf of the lost cluster is gone, although it is unknown what runs there")
	}
	if n, _ := c.running("west", "web"); n != 2 {
		c.tb.Errorf("%d run in west, which is disconnected, want 2", n)
	}
	c.site["west"].Plug()
	c.awaitCluster("west", metav1.ConditionTrue)
	c.rests("web", both)
	c.remove("web")
}
