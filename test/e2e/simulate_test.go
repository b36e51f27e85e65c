package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedSimulate has nodes that use the real protocol and run nothing.
func TestPrivilegedSimulate(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{NoAgent: true})
	cmd := exec.Command(filepath.Join(c.Bin, "rik"), "simulate", "--data-dir", c.DataDir(), "--nodes", "5")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // the test has stopped it
	})
	c.AwaitNodes(5)
	apply(t, c, rikcluster.Manifest("many", "nginx:1", "true", ""), "many", 20)
	c.Eventually(func() error {
		running := 0
		for _, in := range instancesOf(c, "many") {
			if in.Status.Phase == rikv1alpha1.InstanceRunning {
				running++
			}
		}
		if running != 20 {
			return fmt.Errorf("%d of 20 instances run", running)
		}
		return nil
	})
	c.Rikctl("delete", "workload", "many")
}
