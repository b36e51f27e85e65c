package runner

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/state"
)

// counted returns an instance that appends a line to a file in dir for every start. Then it waits
// for the file "go", and exits with the code in it.
func counted(t testing.TB, uid string, policy rikv1alpha1.RestartPolicy) (in instance.Instance, dir string) {
	t.Helper()
	dir = t.TempDir()
	c := sh("main", "trap 'exit 0' TERM; echo start >> /h/starts; until [ -e /h/go ]; do sleep 0.05; done; exit $(cat /h/go)")
	c.VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "h", MountPath: "/h"}, {Name: "e", MountPath: "/e"}}
	in = podOf(uid, policy, c)
	in.Template.Volumes = []rikv1alpha1.Volume{
		{Name: "h", HostPath: &rikv1alpha1.HostPathVolume{Path: dir}},
		{Name: "e", EmptyDir: &rikv1alpha1.EmptyDirVolume{InMemory: true}},
	}
	return in, dir
}

func starts(dir string) int {
	text, _ := readFile(filepath.Join(dir, "starts"))
	return strings.Count(text, "start\n")
}

// hosted returns a command that runs a driver in another process.
func (n *node) hosted(h hosting) *exec.Cmd {
	n.Helper()
	h.Dir, h.Tools = n.dir, tools.dir
	if n.network != nil {
		h.Network = n.network.pid
	}
	if n.vm != nil {
		h.VMM = n.vm.Driver.Name()
	}
	data, err := json.Marshal(h)
	if err != nil {
		n.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envHost+"="+string(data))
	cmd.Stderr = os.Stderr
	return cmd
}

// dies runs a driver until it kills itself at the given step.
func (n *node) dies(h hosting) {
	n.Helper()
	cmd := n.hosted(h)
	err := cmd.Run()
	if cmd.ProcessState == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		n.Fatalf("hosting process ended with %v, want killed at %s %s", err, h.KillAt, h.KillStep)
	}
}

// killedWhileRunning runs a driver until its instance runs, then kills the driver.
func (n *node) killedWhileRunning(in instance.Instance) {
	n.Helper()
	n.killedOnceItRuns(hosting{Instance: in})
}

func (n *node) killedOnceItRuns(h hosting) {
	n.Helper()
	cmd := n.hosted(h)
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "running\n" {
		n.Errorf("the hosting process printed %q, %v", line, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// TestPrivilegedCommandsEndWithTheirAgent checks that a restarted riklet ends a command that was
// executed in a container, and nothing else in the container.
func TestPrivilegedCommandsEndWithTheirAgent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	in, dir := counted(t, "u1", rikv1alpha1.RestartAlways)
	n.killedOnceItRuns(hosting{Instance: in, Exec: []string{"/bin/sh", "-c", "echo running; exec sleep 4343"}})
	group := filepath.Join(n.cfg.CgroupParent, "u1", "main")
	if len(sleeping(group)) != 1 {
		t.Fatalf("%v run the command after the kill, want one: the test shows nothing", sleeping(group))
	}
	n.start()
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	eventually(t, func() string {
		if left := sleeping(group); len(left) > 0 {
			return fmt.Sprintf("%v still run the command", left)
		}
		return ""
	})
	if s := n.status("u1"); s.Containers[0].RestartCount != 0 || starts(dir) != 1 {
		t.Errorf("restarts = %d, starts = %d, want 0 and 1", s.Containers[0].RestartCount, starts(dir))
	}
	left, err := filepath.Glob(filepath.Join(n.cfg.Run, "pods", "u1", "c", "main", "*exec-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left of the command: %q, %v", left, err)
	}
	n.stop("u1", time.Minute)
}

// sleeping lists the processes in a cgroup that run the test's command.
func sleeping(group string) []int {
	var found []int
	layout, err := cgroup.Detect()
	if err != nil {
		return nil
	}
	for _, pid := range layout.Processes(group) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(line), "4343") {
			found = append(found, pid)
		}
	}
	return found
}

var everyDo = []string{"directories", "volumes", stepSupervisor, stepNetwork, stepImage, stepRootfs, stepBundle, stepStart}

func TestPrivilegedKilledAtEveryStepOfAStart(t *testing.T) {
	t.Parallel()
	for _, step := range everyDo {
		for _, at := range []lifecycle.Point{lifecycle.BeforeDo, lifecycle.AfterDo} {
			t.Run(fmt.Sprintf("%s %s", at, step), func(t *testing.T) {
				t.Parallel()
				n := newNetworkNode(t)
				if step == stepImage {
					n.bare()
				}
				in, dir := counted(t, "u1", rikv1alpha1.RestartAlways)
				n.dies(hosting{Instance: in, KillStep: step, KillAt: at})
				n.start()
				n.ensure(in)
				s := n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
				if s.Containers[0].RestartCount != 0 {
					t.Errorf("restarts = %d, want 0", s.Containers[0].RestartCount)
				}
				eventually(t, func() string {
					if starts(dir) == 0 {
						return "the container has not begun"
					}
					return ""
				})
				n.stop("u1", time.Minute)
				if got := starts(dir); got != 1 {
					t.Errorf("the container was started %d times, want once", got)
				}
			})
		}
	}
}

func TestPrivilegedKilledAtEveryStepOfAStop(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"directories", "volumes", stepSupervisor, stepNetwork, stepRootfs, stepBundle, stepStart} {
		for _, at := range []lifecycle.Point{lifecycle.BeforeUndo, lifecycle.AfterUndo} {
			t.Run(fmt.Sprintf("%s %s", at, step), func(t *testing.T) {
				t.Parallel()
				n := newNetworkNode(t)
				in, dir := counted(t, "u1", rikv1alpha1.RestartAlways)
				n.dies(hosting{Instance: in, KillStep: step, KillAt: at, Stop: true})
				n.start()
				n.awaitPhase("u1", rikv1alpha1.InstanceTerminated) // without another order
				n.stop("u1", -1)
				if got := starts(dir); got > 1 {
					t.Errorf("the container was started %d times", got)
				}
			})
		}
	}
}

func TestPrivilegedOrphansAreRemoved(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"volumes", stepSupervisor, stepNetwork, stepRootfs, stepStart} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			n := newNetworkNode(t)
			in, _ := counted(t, "u1", rikv1alpha1.RestartAlways)
			n.dies(hosting{Instance: in, KillStep: step, KillAt: lifecycle.AfterDo})
			if err := os.Remove(filepath.Join(n.cfg.Root, "pods.db")); err != nil {
				t.Fatal(err)
			}
			d := n.start()
			if got := d.List(); len(got) != 0 {
				t.Errorf("List() = %v, want nothing known", got)
			}
			if left := n.leftOf("u1"); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			layout, err := cgroup.Detect()
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, func() string {
				if pids := layout.Processes(n.cfg.CgroupParent); len(pids) > 0 {
					return fmt.Sprintf("processes left: %v", pids)
				}
				return ""
			})
		})
	}
}

// TestPrivilegedLostRecordsCountARestart checks that an instance whose record was lost starts
// again, counts a restart and reports the reason. With restart policy Never it has failed.
func TestPrivilegedLostRecordsCountARestart(t *testing.T) {
	t.Parallel()
	for policy, want := range map[rikv1alpha1.RestartPolicy]struct {
		phase    rikv1alpha1.InstancePhase
		starts   int
		restarts int32
	}{
		rikv1alpha1.RestartAlways:    {rikv1alpha1.InstanceRunning, 2, 1},
		rikv1alpha1.RestartOnFailure: {rikv1alpha1.InstanceRunning, 2, 1},
		rikv1alpha1.RestartNever:     {rikv1alpha1.InstanceFailed, 1, 0},
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			n := newNetworkNode(t)
			in, dir := counted(t, "u1", policy)
			n.killedWhileRunning(in)
			if err := os.Remove(filepath.Join(n.cfg.Root, "pods.db")); err != nil {
				t.Fatal(err)
			}
			n.start()
			n.end() // what was found survives another restart of the riklet
			n.start()
			n.ensure(in)
			s := n.awaitPhase("u1", want.phase)
			c := s.Containers[0]
			reason := c.Reason // of one that has ended for good
			if c.LastState != nil {
				reason = c.LastState.Reason
			}
			if c.RestartCount != want.restarts || reason != reasonRecordLost {
				t.Errorf("container = %+v, last %+v; want %d restarts and the reason %s", c, c.LastState, want.restarts, reasonRecordLost)
			}
			eventually(t, func() string {
				if got := starts(dir); got != want.starts {
					return fmt.Sprintf("%d starts, want %d", got, want.starts)
				}
				return ""
			})
			n.stop("u1", 0)
		})
	}
}

// awaitExitFile waits until a supervisor has written the exit file while no riklet runs.
func (n *node) awaitExitFile(uid string) {
	n.Helper()
	eventually(n, func() string {
		if _, err := os.Stat(filepath.Join(n.cfg.Root, "pods", uid, "exits", "main.json")); err != nil {
			return err.Error()
		}
		return ""
	})
}

func TestPrivilegedExitWhileTheAgentIsDown(t *testing.T) {
	t.Parallel()
	for name, supervisorDies := range map[string]bool{"supervisor lives": false, "supervisor is gone too": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			in, dir := counted(t, "u1", rikv1alpha1.RestartNever)
			n.killedWhileRunning(in)
			if err := os.WriteFile(filepath.Join(dir, "go"), []byte("3"), 0o600); err != nil {
				t.Fatal(err)
			}
			n.awaitExitFile("u1")
			if supervisorDies {
				n.killEverything()
			}
			n.start()
			s := n.awaitPhase("u1", rikv1alpha1.InstanceFailed)
			if c := s.Containers[0]; c.ExitCode == nil || *c.ExitCode != 3 || c.RestartCount != 0 {
				t.Errorf("container = %+v", c)
			}
			n.stop("u1", -1)
			if got := starts(dir); got != 1 {
				t.Errorf("the container was started %d times, want once", got)
			}
		})
	}
}

func TestPrivilegedReattachKeepsEverything(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	in, dir := counted(t, "u1", rikv1alpha1.RestartOnFailure)
	n.killedWhileRunning(in)
	for range 3 { // again, with an orderly end
		d := n.start()
		s := n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
		if !s.Ready || s.Containers[0].RestartCount != 0 || s.Containers[0].ImageDigest == "" || s.Address != "10.62.7.2" {
			t.Errorf("status = %+v", s)
		}
		if code, err := d.Exec(t.Context(), "u1", "", instance.ExecOptions{Command: []string{"true"}}); err != nil || code != 0 {
			t.Errorf("Exec() = %d, %v", code, err)
		}
		n.end()
	}
	n.start()
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.awaitPhase("u1", rikv1alpha1.InstanceCompleted)
	if got := starts(dir); got != 1 {
		t.Errorf("the container was started %d times, want once", got)
	}
}

// killEverything kills all processes of the node's instances.
func (n *node) killEverything() {
	n.Helper()
	layout, err := cgroup.Detect()
	if err != nil {
		n.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// A supervisor may not have joined its cgroup yet.
	eventually(n, func() string {
		left := processesOf(n.dir)
		for _, p := range left {
			if pid, err := strconv.Atoi(strings.Fields(p)[0]); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		return strings.Join(left, "\n")
	})
	if err := layout.Destroy(ctx, n.cfg.CgroupParent); err != nil {
		n.Fatal(err)
	}
}

// reboot simulates a reboot of the node: no process, mount or memory remains, and the kernel has
// another boot ID.
func (n *node) reboot() {
	n.Helper()
	n.killEverything()
	if err := mounts.UnmountBelow(n.dir); err != nil {
		n.Fatal(err)
	}
	store, err := state.Open(filepath.Join(n.cfg.Root, "pods.db"))
	if err != nil {
		n.Fatal(err)
	}
	defer store.Close()
	records, err := store.Load()
	if err != nil {
		n.Fatal(err)
	}
	for _, r := range records {
		r.BootID = "another"
		if err := store.Put(r); err != nil {
			n.Fatal(err)
		}
	}
}

func TestPrivilegedReboot(t *testing.T) {
	t.Parallel()
	for policy, want := range map[rikv1alpha1.RestartPolicy]struct {
		phase  rikv1alpha1.InstancePhase
		reason string
		starts int
	}{
		rikv1alpha1.RestartAlways:    {rikv1alpha1.InstanceRunning, "", 2},
		rikv1alpha1.RestartOnFailure: {rikv1alpha1.InstanceRunning, "", 2},
		rikv1alpha1.RestartNever:     {rikv1alpha1.InstanceFailed, reasonRebooted, 1},
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			n := newNetworkNode(t)
			in, dir := counted(t, "u1", policy)
			n.start()
			n.ensure(in)
			n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
			eventually(t, func() string {
				if starts(dir) == 0 {
					return "the container has not begun"
				}
				return ""
			})
			n.end()
			n.reboot()
			n.start()
			s := n.awaitPhase("u1", want.phase)
			if s.Reason != want.reason {
				t.Errorf("reason = %q, want %q", s.Reason, want.reason)
			}
			eventually(t, func() string {
				if got := starts(dir); got != want.starts {
					return fmt.Sprintf("started %d times, want %d", got, want.starts)
				}
				return ""
			})
			n.stop("u1", time.Minute)
		})
	}
}

// TestPrivilegedHalt ends an instance as before the removal of the programs, and starts it again.
func TestPrivilegedHalt(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	in, dir := counted(t, "u1", rikv1alpha1.RestartAlways)
	n.killedWhileRunning(in)
	for range 2 { // the second time nothing runs
		d := n.open()
		if err := errors.Join(d.Halt(t.Context()), d.Close(), n.closeStores()); err != nil {
			t.Fatal(err)
		}
		if left := traces(n.dir, n.cfg.CgroupParent); len(left) > 0 {
			t.Errorf("left after halting: %v", left)
		}
	}
	n.start()
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	eventually(t, func() string {
		if got := starts(dir); got != 2 {
			return fmt.Sprintf("started %d times, want 2", got)
		}
		return ""
	})
	n.stop("u1", time.Minute)
}

func TestPrivilegedRemovalAfterAReboot(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	in, _ := counted(t, "u1", rikv1alpha1.RestartAlways)
	n.killedWhileRunning(in)
	n.reboot()
	n.open()
	d := n.driver
	d.Stop("u1", 0) // before it could be rebuilt
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	n.end = func() {
		cancel()
		<-done
		_, _ = d.Close(), n.images.Close()
		n.end = nil
	}
	n.stop("u1", 0)
}
