package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedLostNode disconnects one of three machines, and connects it again. It checks the
// running processes on the machines.
func TestPrivilegedLostNode(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{Machines: 3, Args: []string{"--node-timeout=3s", "--replace-after=4s"}})
	hello := c.Hello()
	for _, policy := range []string{"Keep", "Stop"} {
		applyText(t, c, serving(strings.ToLower(policy), hello, 3, spreadAnyway+"\n  terminationGracePeriodSeconds: 2\n  onDisconnect: "+policy, `{port: 80, targetPort: 8080}`))
	}
	waitReady(c, "keep")
	waitReady(c, "stop")

	t.Run("a short silence changes nothing", func(t *testing.T) { shortSilence(t, c.In(t)) })
	t.Run("a lost node is replaced, and found again", func(t *testing.T) { lostAndFound(t, c.In(t)) })
	t.Run("most nodes lost at once replaces nothing", func(t *testing.T) { mostLost(t, c.In(t)) })
	c.Rikctl("delete", "workload", "keep", "stop")
}

const spreadAnyway = `  topologySpread: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway}]`

// on returns the instance of a workload on a node.
func on(t *testing.T, c *rikcluster.Cluster, workload, node string) rikv1alpha1.Instance {
	t.Helper()
	for _, in := range instancesOf(c, workload) {
		if in.Spec.NodeName == node {
			return in
		}
	}
	t.Fatalf("%s has no instance on %s", workload, node)
	return rikv1alpha1.Instance{}
}

// runs reports whether an instance has a process.
func runs(c *rikcluster.Cluster, in rikv1alpha1.Instance) bool {
	return len(c.InstanceProcesses("hello")[string(in.UID)]) > 0
}

// shortSilence checks a disconnection that ends before the node is lost.
func shortSilence(t *testing.T, c *rikcluster.Cluster) {
	before := c.InstanceProcesses("hello")
	c.Machine(2).Unplug()
	c.Eventually(func() error {
		if phase := on(t, c, "keep", "node-2").Status.Phase; phase != rikv1alpha1.InstanceUnknown {
			return fmt.Errorf("the instance on the silent node is %s", phase)
		}
		return nil
	})
	c.Machine(2).Plug()
	c.AwaitNodes(3)
	waitReady(c, "keep")
	after := c.InstanceProcesses("hello")
	for uid := range before {
		// An instance with onDisconnect: Stop may have stopped before the cable was connected
		// again.
		if uid == string(on(t, c, "keep", "node-2").UID) && !slices.Equal(before[uid], after[uid]) {
			t.Errorf("instance %s was %v and is %v", uid, before[uid], after[uid])
		}
	}
	threeReady(c, "stop")
}

// threeReady waits for three ready instances of a workload. There may also be one that stopped
// itself; it is kept for inspection.
func threeReady(c *rikcluster.Cluster, workload string) {
	c.Eventually(func() error {
		ready := 0
		for _, in := range instancesOf(c, workload) {
			if in.Status.Phase == rikv1alpha1.InstanceRunning && in.Status.Ready {
				ready++
			}
		}
		if ready != 3 {
			return fmt.Errorf("%d instances of %s are ready, want 3", ready, workload)
		}
		return nil
	})
}

func lostAndFound(t *testing.T, c *rikcluster.Cluster) {
	kept := on(t, c, "keep", "node-2")
	var stopped *rikv1alpha1.Instance
	for _, in := range instancesOf(c, "stop") {
		if in.Spec.NodeName == "node-2" {
			stopped = &in
		}
	}
	c.Machine(2).Unplug()
	for _, workload := range []string{"keep", "stop"} {
		c.Eventually(func() error {
			ready := 0
			for _, in := range instancesOf(c, workload) {
				if in.Spec.NodeName == "node-2" || in.Status.Phase != rikv1alpha1.InstanceRunning {
					continue
				}
				ready++
				if workload == "stop" && stopped != nil && ready == 3 && runs(c, *stopped) {
					t.Fatal("an instance with onDisconnect: Stop runs together with its replacement")
				}
			}
			if ready != 3 {
				return fmt.Errorf("%s has %d instances on the nodes that are left", workload, ready)
			}
			return nil
		})
	}
	if !runs(c, kept) {
		t.Error("an instance with onDisconnect: Keep was stopped while its node was cut off")
	}
	c.Machine(2).Plug()
	back := time.Now()
	c.Eventually(func() error {
		if runs(c, kept) {
			return errors.New("the instance that was replaced still runs")
		}
		return nil
	})
	t.Logf("the duplicate was gone %v after the cable was back", time.Since(back).Round(100*time.Millisecond))
	c.AwaitNodes(3)
	c.Eventually(func() error {
		for _, workload := range []string{"keep", "stop"} {
			alive := 0
			for _, in := range instancesOf(c, workload) {
				if !in.Status.Phase.Ended() {
					alive++
				}
			}
			if alive != 3 {
				return fmt.Errorf("%s has %d instances, want 3", workload, alive)
			}
		}
		if n := len(c.InstanceProcesses("hello")); n != 6 {
			return fmt.Errorf("%d instances have processes, want 6", n)
		}
		return nil
	})
}

// mostLost disconnects two of three machines, which looks like a fault of the server's own link.
// No instance is replaced, and the reason is reported.
func mostLost(t *testing.T, c *rikcluster.Cluster) {
	before := map[string]bool{}
	for _, in := range instancesOf(c, "keep") {
		before[string(in.UID)] = true
	}
	c.Machine(2).Unplug()
	c.Machine(3).Unplug()
	for _, name := range []string{"node-2", "node-3"} {
		c.Eventually(func() error {
			var n rikv1alpha1.Node
			c.Get(&n, "nodes/"+name)
			if !meta.IsStatusConditionTrue(n.Status.Conditions, "ReplacementPaused") {
				return fmt.Errorf("%s has the conditions %+v", name, n.Status.Conditions)
			}
			return nil
		})
	}
	// Longer than the timeout of a lost node.
	pause(t.Context(), 8*time.Second)
	after := instancesOf(c, "keep")
	for _, in := range after {
		if !before[string(in.UID)] {
			t.Errorf("%s was made while most nodes were silent", in.Name)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d instances, want the %d of before", len(after), len(before))
	}
	c.Machine(2).Plug()
	c.Machine(3).Plug()
	c.AwaitNodes(3)
	threeReady(c, "keep")
	threeReady(c, "stop")
}
