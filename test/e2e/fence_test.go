package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedFence runs a kcp, a rik cluster and the syncer between them. One after the
// other, it takes away the parts through which the cluster knows that it can reach the kcp. It
// checks the running processes on the machine.
func TestPrivilegedFence(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{Split: true})
	k := startKCP(t, "6443", "--resources-to-sync", "workloads.rik.dev")
	k.do("rikctl", "cluster", "register", "east", "--kubeconfig", filepath.Join(c.DataDir(), "admin.kubeconfig"))
	syncer := rikcluster.StartProcess(t, "syncer", filepath.Join(t.TempDir(), "syncer.log"), filepath.Join(c.Bin, "syncer"),
		"--cluster", "east", "--from-kubeconfig", k.kubeconfig(), "--to-kubeconfig", filepath.Join(c.DataDir(), "admin.kubeconfig"))
	k.publish("workloads.v1alpha1.rik.dev", "workloads.rik.dev", "east")
	k.await("True", "cluster", "east", "-o", `jsonpath={.status.conditions[?(@.type=="Fencing")].status}`)

	manifest := serving("web", c.Hello(), 2, "  terminationGracePeriodSeconds: 2", `{port: 80, targetPort: 8080}`)
	k.apply(strings.Replace(manifest, "{name: web}",
		`{name: web, labels: {workloads.kcp.dev/cluster: east}, annotations: {workloads.kcp.dev/fence-after: 10s}}`, 1))
	running(c, 2)
	namespace := strings.TrimPrefix(strings.TrimSpace(c.Kubectl("", "get", "namespaces", "-l", "workloads.kcp.dev/cluster=east", "-o", "name").Stdout), "namespace/")

	t.Run("the syncer stands still", func(t *testing.T) {
		c := c.In(t)
		goOn := halt(t, syncer)
		running(c, 0)
		c.Eventually(func() error {
			said := c.Rikctl("describe", "workload", "web", "-n", namespace)
			for _, want := range []string{"Fenced", "has not answered since"} {
				if !strings.Contains(said, want) {
					return fmt.Errorf("no %q in %s", want, said)
				}
			}
			return nil
		})
		if got := c.Kubectl("", "get", "workload", "web", "-n", namespace, "-o", "jsonpath={.spec.replicas}").Stdout; got != "2" {
			t.Errorf("spec.replicas is %s while the workload is fenced, want 2", got)
		}
		// A change upstream in the meantime takes effect before any instance comes back.
		k.in(t).kubectl("scale", "workload.rik.dev", "web", "--replicas=1")
		goOn()
		c.Eventually(func() error {
			n := len(c.InstanceProcesses("hello"))
			if n > 1 {
				t.Errorf("%d instances run after the workload was scaled to 1", n)
			}
			if n != 1 {
				return fmt.Errorf("%d instances run, want 1", n)
			}
			return nil
		})
		k.in(t).kubectl("scale", "workload.rik.dev", "web", "--replicas=2")
		running(c, 2)
	})
	t.Run("the kcp stands still", func(t *testing.T) {
		c := c.In(t)
		goOn := halt(t, k.process)
		running(c, 0)
		goOn()
		running(c, 2)
	})
	t.Run("the cluster's controller stands still, and its node stops them", func(t *testing.T) {
		c := c.In(t)
		goOn := halt(t, c.Process("controller"))
		running(c, 0)
		goOn()
		running(c, 2)
	})
	t.Run("a riklet that starts again keeps them", func(t *testing.T) {
		c := c.In(t)
		before := fmt.Sprint(c.InstanceProcesses("hello"))
		c.Process("riklet").Kill()
		c.Restart("riklet")
		c.AwaitNodes(1)
		if after := fmt.Sprint(c.InstanceProcesses("hello")); after != before {
			t.Errorf("after the riklet started again run %s, before it %s", after, before)
		}
	})
	k.kubectl("delete", "workload.rik.dev", "web", "--timeout=120s")
	running(c, 0)
}

// running waits until that many instances run.
func running(c *rikcluster.Cluster, want int) {
	c.Eventually(func() error {
		if found := c.InstanceProcesses("hello"); len(found) != want {
			return fmt.Errorf("%d instances run, want %d: %v", len(found), want, found)
		}
		return nil
	})
}

// halt stops a process with SIGSTOP until the caller calls goOn, or the test ends.
func halt(t *testing.T, p *rikcluster.Process) (goOn func()) {
	t.Helper()
	pid := p.PID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn = func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Errorf("letting process %d go on: %v", pid, err)
		}
	}
	t.Cleanup(goOn)
	return goOn
}
