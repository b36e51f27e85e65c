package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedLongCut disconnects a machine for 10 s, for twice the time after which it is
// lost, and for 5 minutes, with the default limits of a server. It takes nine minutes, so it
// runs only with RIK_E2E_LONG=1. TestPrivilegedLostNode does the same with limits of seconds.
func TestPrivilegedLongCut(t *testing.T) {
	privileged.Require(t)
	if !privileged.Long() {
		t.Skipf("%s is not 1", privileged.EnvLong)
	}
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{Machines: 3})
	hello := c.Hello()
	for _, policy := range []string{"Keep", "Stop"} {
		applyText(t, c, serving(strings.ToLower(policy), hello, 3, spreadAnyway+"\n  terminationGracePeriodSeconds: 5\n  onDisconnect: "+policy, `{port: 80, targetPort: 8080}`))
	}
	waitReady(c, "keep")
	waitReady(c, "stop")
	for _, tc := range []struct {
		cut      time.Duration
		replaced bool
	}{{10 * time.Second, false}, {40 * time.Second, false}, {5 * time.Minute, true}} {
		t.Run(tc.cut.String(), func(t *testing.T) { longCut(t, c.In(t), tc.cut, tc.replaced) })
	}
	c.Rikctl("delete", "workload", "keep", "stop")
}

// longCut checks every second that an instance with onDisconnect: Stop does not run at the same
// time as its replacement: its workload would then have more processes than replicas.
func longCut(t *testing.T, c *rikcluster.Cluster, cut time.Duration, replaced bool) {
	kept := on(t, c, "keep", "node-2")
	c.Machine(2).Unplug()
	for end := time.Now().Add(cut); time.Now().Before(end); {
		noDuplicates(t, c)
		pause(t.Context(), time.Second)
	}
	if !runs(c, kept) {
		t.Error("an instance with onDisconnect: Keep was stopped while its node was cut off")
	}
	c.Machine(2).Plug()
	back := time.Now()
	c.AwaitNodes(3)
	if replaced {
		c.Eventually(func() error {
			if runs(c, kept) {
				return errors.New("the instance that was replaced still runs")
			}
			return nil
		})
		t.Logf("the duplicate was gone %v after the cable was back", time.Since(back).Round(100*time.Millisecond))
	} else if now := on(t, c, "keep", "node-2"); now.UID != kept.UID {
		t.Errorf("%s was replaced by %s after %v", kept.Name, now.Name, cut)
	}
	threeReady(c, "keep")
	threeReady(c, "stop")
	noDuplicates(t, c)
	if replaced {
		return
	}
	// The next round needs both workloads on the machine again.
	if on(t, c, "keep", "node-2").Status.Phase != rikv1alpha1.InstanceRunning {
		t.Error("the instance on the machine does not run")
	}
}

// noDuplicates compares the number of processes of the workload with onDisconnect: Stop with its
// replicas.
func noDuplicates(t *testing.T, c *rikcluster.Cluster) {
	t.Helper()
	running := c.InstanceProcesses("hello")
	n := 0
	for _, in := range instancesOf(c, "stop") {
		if len(running[string(in.UID)]) > 0 {
			n++
		}
	}
	if n > 3 {
		t.Errorf("%d instances of a workload with 3 replicas and onDisconnect: Stop run at once", n)
	}
}
