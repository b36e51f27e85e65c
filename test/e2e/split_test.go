package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedComponentsAlone runs controller, scheduler and riklet as separate processes,
// which communicate only over TLS.
func TestPrivilegedComponentsAlone(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{Split: true})
	image := c.Busybox()
	apply(t, c, rikcluster.Manifest("web", image, "echo here; exec sleep 100000", ""), "web", 2)
	waitReady(c, "web")
	for _, in := range instancesOf(c, "web") {
		if got := c.Rikctl("logs", in.Name); got != "here\n" {
			t.Errorf("log of %s is %q", in.Name, got)
		}
	}

	t.Run("without a scheduler nothing is claimed", func(t *testing.T) { withoutScheduler(t, c.In(t)) })
	t.Run("fault 20: a second machine of the same name is refused", func(t *testing.T) {
		c := c.In(t)
		machine := shortDir(t)
		if err := os.WriteFile(filepath.Join(machine, "machine-id"), []byte(strings.Repeat("ab", 16)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		// The same host with another /etc/machine-id acts as another machine.
		script := `mount --bind "$0/machine-id" /etc/machine-id && exec "$@"`
		out := rikcluster.Command(t, "unshare", "--mount", "--", "/bin/sh", "-c", script, machine,
			filepath.Join(c.Bin, "riklet"), "--server", "https://127.0.0.1:5000", "--token-file", c.TokenFile(),
			"--network", "none", "--node-name", "node-1", "--state-dir", filepath.Join(machine, "state"), "--run-dir", filepath.Join(machine, "run"))
		if out.Code == 0 || !strings.Contains(out.Stderr, "another machine has") {
			t.Errorf("the second riklet: code %d\n%s", out.Code, out.Stderr)
		}
		purge := rikcluster.Run(t, "riklet", "purge", "--state-dir", filepath.Join(machine, "state"), "--run-dir", filepath.Join(machine, "run"))
		if purge.Err != nil {
			t.Error(purge.Err)
		}
	})
	t.Run("fault 20: a second riklet on the machine is refused", func(t *testing.T) { secondRiklet(t, c.In(t)) })
	t.Run("an unknown token is refused", func(t *testing.T) {
		c := c.In(t)
		dir := shortDir(t)
		raw, err := os.ReadFile(c.TokenFile())
		if err != nil {
			t.Fatal(err)
		}
		parts := strings.Split(strings.TrimSpace(string(raw)), ".")
		parts[3] = strings.Repeat("A", len(parts[3]))
		out := rikcluster.Run(t, "riklet", "--server", "https://127.0.0.1:5000", "--token", strings.Join(parts, "."),
			"--network", "none", "--node-name", "node-2", "--state-dir", filepath.Join(dir, "state"), "--run-dir", filepath.Join(dir, "run"))
		if out.Code == 0 || !strings.Contains(out.Stderr, "token") || strings.Contains(out.Stderr, parts[3]) {
			t.Errorf("the riklet with a wrong token: code %d\n%s", out.Code, out.Stderr)
		}
		purge := rikcluster.Run(t, "riklet", "purge", "--state-dir", filepath.Join(dir, "state"), "--run-dir", filepath.Join(dir, "run"))
		if purge.Err != nil {
			t.Error(purge.Err)
		}
	})
	c.Rikctl("delete", "workload", "web")
}

// secondRiklet starts riklets and purges that share something with the cluster's node, and
// checks that its instances survive.
func secondRiklet(t *testing.T, c *rikcluster.Cluster) {
	before := c.InstanceProcesses("sleep")
	if len(before) != 2 {
		t.Fatalf("sleep runs in %d instances, want 2", len(before))
	}
	own := shortDir(t)
	parent := "/" + filepath.Base(c.Dir)
	state, run, cgroup := filepath.Join(own, "state"), filepath.Join(own, "run"), parent+"-second"
	pid := fmt.Sprint(c.Process("riklet").PID())
	for _, tc := range []struct {
		what, state, run, cgroup string
		purge                    bool
		says                     []string
	}{
		{"one of the same name", state, run, cgroup, false, []string{"another riklet is connected as node \"node-1\"", "--node-name"}},
		{"one in its run directory", state, c.RunDir(), cgroup, false, []string{"run directory " + c.RunDir(), pid, "--run-dir"}},
		{"one in its cgroup", state, run, parent, false, []string{"cgroup " + parent, pid, "--cgroup-parent"}},
		{"one in its state directory", c.StateDir(), run, cgroup, false, []string{"state directory " + c.StateDir(), pid, "--state-dir"}},
		{"a purge of its run directory", state, c.RunDir(), cgroup, true, []string{pid, "nothing was removed"}},
		{"a purge of its cgroup", state, run, parent, true, []string{pid, "nothing was removed"}},
		{"a purge of its state directory", c.StateDir(), run, cgroup, true, []string{pid, "nothing was removed"}},
	} {
		args := []string{"--state-dir", tc.state, "--run-dir", tc.run, "--cgroup-parent", tc.cgroup, "--vmm", "none"}
		if tc.purge {
			args = append([]string{"purge"}, args...)
		} else {
			args = append(args, "--server", "https://127.0.0.1:5000", "--token-file", c.TokenFile(), "--network", "none", "--node-name", "node-1")
		}
		out := rikcluster.Run(t, "riklet", args...)
		for _, text := range tc.says {
			if out.Code == 0 || !strings.Contains(out.Stderr, text) {
				t.Errorf("%s: code %d, want one that says %q\n%s", tc.what, out.Code, text, out.Stderr)
			}
		}
	}
	if diff := cmp.Diff(before, c.InstanceProcesses("sleep")); diff != "" {
		t.Errorf("the processes of the instances (-before +after):\n%s", diff)
	}
	purge := rikcluster.Run(t, "riklet", "purge", "--state-dir", state, "--run-dir", run, "--cgroup-parent", cgroup)
	if purge.Err != nil {
		t.Error(purge.Err)
	}
}

// withoutScheduler stops the scheduler until timeouts expire. The status reports it, the node
// stops exactly the instances that it must, and everything recovers.
func withoutScheduler(t *testing.T, c *rikcluster.Cluster) {
	t.Helper()
	apply(t, c, rikcluster.Manifest("strict", c.Busybox(), "exec sleep 200000", "  deploy: Automatic\n  replicas: 5\n  onDisconnect: Stop"), "strict", 0)
	waitReady(c, "strict")
	keep, strict := instancesOf(c, "web"), instancesOf(c, "strict")
	c.Process("scheduler").Stop()
	c.Eventually(func() error {
		for _, in := range append(instancesOf(c, "web"), instancesOf(c, "strict")...) {
			if in.Status.Phase != rikv1alpha1.InstanceUnknown || in.Status.Reason != "SchedulerUnavailable" {
				return fmt.Errorf("%s is %s (%s)", in.Name, in.Status.Phase, in.Status.Reason)
			}
		}
		return nil
	})
	if out := c.TryRikctl("why", strict[0].Name); out.Code != 5 || !strings.Contains(out.Stderr, "no scheduler has been connected to the controller since 20") {
		t.Errorf("why: code %d\n%s", out.Code, out.Stderr)
	}
	c.Eventually(func() error {
		running := c.InstanceProcesses("sleep")
		for i := range strict {
			if len(running[string(strict[i].UID)]) > 0 {
				return fmt.Errorf("%s still runs", strict[i].Name)
			}
		}
		for i := range keep {
			if len(running[string(keep[i].UID)]) != 1 {
				t.Fatalf("%s has %d processes, want the one that it had", keep[i].Name, len(running[string(keep[i].UID)]))
			}
		}
		return nil
	})
	c.Restart("scheduler")
	c.Eventually(func() error {
		ready := 0
		for _, in := range append(instancesOf(c, "web"), instancesOf(c, "strict")...) {
			if in.Status.Phase == rikv1alpha1.InstanceRunning && in.Status.Ready {
				ready++
			}
		}
		if want := len(keep) + len(strict); ready != want {
			return fmt.Errorf("%d are ready, want %d", ready, want)
		}
		return nil
	})
	for i := range keep {
		if now := instancesOf(c, "web"); !slices.ContainsFunc(now, func(in rikv1alpha1.Instance) bool { return in.UID == keep[i].UID }) {
			t.Errorf("%s was replaced", keep[i].Name)
		}
	}
	c.Rikctl("delete", "workload", "strict")
	c.Eventually(func() error {
		if running := c.InstanceProcesses("sleep"); len(running) != len(keep) {
			return fmt.Errorf("sleep runs in %d instances, want those %d that stay", len(running), len(keep))
		}
		return nil
	})
}

// shortDir returns a directory whose path is short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "rik")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
