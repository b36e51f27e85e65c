package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/microvm"
	"rik.dev/rik/internal/riklet/shim"
)

// hostileNode returns a node with an ordinary microVM, which the hostile ones must not affect.
func hostileNode(t *testing.T) *node {
	n := newVMNode(t)
	n.cfg.PIDsPerContainer = 64
	n.start()
	n.ensure(microVM("honest", rikv1alpha1.RestartAlways, sh("main", forever)))
	n.awaitPhase("honest", rikv1alpha1.InstanceRunning)
	return n
}

// unharmed checks the ordinary microVM, and the memory of the riklet and of the hostile
// instance's supervisor.
func (n *node) unharmed(uid string) {
	n.Helper()
	code, err := n.driver.Exec(n.Context(), "honest", "", instance.ExecOptions{Command: []string{"true"}})
	if s := n.status("honest"); err != nil || code != 0 || s.Containers[0].RestartCount != 0 {
		n.Errorf("after %s the honest microVM answers %d, %v: %+v", uid, code, err, s)
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 128<<20 {
		n.Errorf("after %s the agent's heap has %d MiB", uid, m.HeapAlloc>>20)
	}
	if machine := n.driver.machine(uid); machine != nil {
		if pid, ok := machine.engineRunning().Namespaces(); ok && resident(n, pid) > 64<<20 {
			n.Errorf("the supervisor of %s has %d MiB", uid, resident(n, pid)>>20)
		}
	}
}

// resident returns the resident memory of a process in bytes, or 0 if the process has ended.
func resident(t testing.TB, pid int) int {
	t.Helper()
	text, err := readFile("/proc/" + strconv.Itoa(pid) + "/statm")
	fields := strings.Fields(text)
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// onDisk returns the disk space of a directory and the names of its files.
func onDisk(dir string) (size int64, names []string) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil //nolint:nilerr // it went away while we walked
		}
		if info, err := e.Info(); err == nil {
			size += info.Sys().(*syscall.Stat_t).Blocks * 512
			names = append(names, filepath.Base(path))
		}
		return nil
	})
	return size, names
}

// root returns a container with every capability of its guest.
func root(name, script string) rikv1alpha1.Container {
	c := sh(name, "mkdir -p /d /s /p; mount -t devtmpfs d /d; mount -t sysfs s /s; mount -t proc p /p; "+script)
	c.Security = &rikv1alpha1.Security{Privileged: true}
	return c
}

func TestPrivilegedVMHostileGuests(t *testing.T) {
	t.Parallel()
	n := hostileNode(t)
	for _, tc := range []struct {
		name string
		test func(*testing.T, *node, string)
	}{
		{"floods-and-is-killed", floods},
		{"fills-its-disk-and-ignores-signals", fillsItsDisk},
		{"bombs", bombs},
		{"panics-and-is-killed", panics},
		{"breaks-the-channel-and-hangs", breaksTheChannel},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			inner := *n
			inner.TB = t
			tc.test(t, &inner, tc.name)
			inner.unharmed(tc.name)
			inner.stop(tc.name, time.Second)
		})
	}
}

// rolled waits until a log has been rotated a few times, and checks its size.
func (n *node) rolled(uid, container string) {
	n.Helper()
	dir := n.driver.paths.LogDir(uid, container)
	eventually(n, func() string {
		_, names := onDisk(dir)
		for _, name := range names {
			if _, number, _ := strings.Cut(strings.TrimSuffix(name, ".log"), "-"); number > "000005" {
				return ""
			}
		}
		return "segments: " + strings.Join(names, " ")
	})
	if size, names := onDisk(dir); size > 2*n.cfg.LogLimits.Bytes+1<<20 {
		n.Errorf("the log has %d KiB: %v", size>>10, names)
	}
}

// floods runs a guest that floods its logs, and kills its VMM in the end. The instance does not
// restart.
func floods(t *testing.T, n *node, uid string) {
	n.ensure(microVM(uid, rikv1alpha1.RestartNever,
		sh("main", "yes flood flood flood & yes err >&2 & tr '\\0' x < /dev/zero"), root("loud", "yes flood flood flood > /d/ttyS0")))
	n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
	n.rolled(uid, "main")
	n.rolled(uid, engine.VMM)
	if code, err := n.driver.Exec(t.Context(), uid, "main", instance.ExecOptions{Command: []string{"true"}}); code != 0 || err != nil {
		t.Errorf("Exec() = %d, %v", code, err)
	}
	n.killVMM(uid)
	s := n.awaitPhase(uid, rikv1alpha1.InstanceFailed)
	if c := s.Containers[0]; c.Reason != reasonVMEnded || c.ExitCode == nil || *c.ExitCode != 137 {
		t.Errorf("container = %+v", c)
	}
	if left := processesOf(filepath.Join(n.cfg.Run, "vm", uid)); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func fillsItsDisk(t *testing.T, n *node, uid string) {
	c := sh("main", "dd if=/dev/zero of=/big bs=1M 2>&1; echo filled $?; "+forever)
	c.Resources.Limits = rikv1alpha1.ResourceList{rikv1alpha1.ResourceDisk: quantity("64Mi")}
	deaf := sh("deaf", "trap 'echo no' TERM INT; echo up; while :; do sleep 1000; done")
	n.ensure(microVM(uid, rikv1alpha1.RestartAlways, c, deaf))
	n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
	eventually(t, func() string {
		if log := n.log(uid, "main"); !strings.Contains(log, "No space left") || !strings.Contains(log, "filled 1") {
			return "log: " + log
		}
		return ""
	})
	if size, names := onDisk(n.driver.paths.RootDir(uid)); size > 65<<20 {
		t.Errorf("it takes %d MiB of the node's disk: %v", size>>20, names)
	}
	if s := n.status(uid); s.Phase != rikv1alpha1.InstanceRunning || s.Containers[0].RestartCount != 0 {
		t.Errorf("status = %+v", s)
	}
	eventually(t, func() string {
		if log := n.log(uid, "deaf"); log != "up\n" {
			return "log: " + log
		}
		return ""
	})
	n.killed(uid, 1)
}

// killed stops an instance in which one container does not end by itself, and checks how that
// container ended.
func (n *node) killed(uid string, container int) {
	n.Helper()
	n.driver.Stop(uid, time.Second)
	s := n.awaitPhase(uid, rikv1alpha1.InstanceTerminated)
	if c := s.Containers[container]; c.ExitCode == nil || *c.ExitCode != 137 {
		n.Errorf("container = %+v, want it killed", c)
	}
}

func bombs(t *testing.T, n *node, uid string) {
	n.ensure(microVM(uid, rikv1alpha1.RestartAlways, sh("main", "b() { b | b & }; b 2> /dev/null; cat /sys/fs/cgroup/pids.max; while :; do b 2> /dev/null; done")))
	n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for range 3 { // the guest init still has a share of the processor
		if err := guest.New(shim.GuestOpener(microvm.GuestSocket(n.driver.paths, uid))).Health(ctx); err != nil {
			t.Error(err)
		}
	}
	if log := n.log(uid, ""); log != "" && log != "64\n" {
		t.Errorf("the bound of its processes is %q, want 64", log)
	}
}

// rebuilt waits until an instance has lost its machine the given number of times and runs in a
// new one.
func (n *node) rebuilt(uid string, restarts int32) {
	n.Helper()
	s := n.await(uid, "running again", func(s rikv1alpha1.InstanceStatus) bool {
		return len(s.Containers) > 0 && s.Containers[0].RestartCount == restarts && s.Containers[0].State == rikv1alpha1.ContainerRunning
	})
	if last := s.Containers[0].LastState; last == nil || last.Reason != reasonVMEnded || last.Message == "" || last.ExitCode != 137 {
		n.Errorf("the run before ended with %+v, want %s and why", last, reasonVMEnded)
	}
	if pids := n.vmms(uid); len(pids) != 1 {
		n.Errorf("VMMs: %v", pids)
	}
}

// awaitGo delays a script until its root file system contains a certain file. The next run's does
// not.
const awaitGo = "until [ -e /go ]; do sleep 0.1; done; "

// releaseGuest creates that file. The answer may be lost with the machine. If the same run still
// exists, releaseGuest repeats the command.
func (n *node) releaseGuest(uid string) {
	n.Helper()
	before := n.status(uid).Containers[0].RestartCount
	eventually(n, func() string {
		ctx, cancel := context.WithTimeout(n.Context(), 10*time.Second)
		defer cancel()
		_, err := n.driver.Exec(ctx, uid, "", instance.ExecOptions{Command: []string{"touch", "/go"}})
		if c := n.status(uid).Containers; err == nil || len(c) == 0 || c[0].RestartCount != before || c[0].State != rikv1alpha1.ContainerRunning {
			return ""
		}
		return err.Error()
	})
}

// asked executes commands in a guest until another run of it has started. The riklet detects a
// silent channel only after minutes, so asked kills the VMM after three failures.
func (n *node) asked(uid string) {
	n.Helper()
	unanswered := 0
	eventually(n, func() string {
		if c := n.status(uid).Containers; len(c) > 0 && c[0].RestartCount > 0 {
			return ""
		}
		if unanswered == 3 {
			unanswered++                      // once: then the machine is replaced
			for _, pid := range n.vmms(uid) { // none, if it ended meanwhile
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		ctx, cancel := context.WithTimeout(n.Context(), 10*time.Second)
		defer cancel()
		_, err := n.driver.Exec(ctx, uid, "", instance.ExecOptions{Command: []string{"true"}})
		if errors.Is(err, context.DeadlineExceeded) {
			unanswered++
		}
		return fmt.Sprintf("the guest is the same one still, and answers: %v", err)
	})
}

// panics makes the guest's kernel panic, and then kills the VMM.
func panics(_ *testing.T, n *node, uid string) {
	n.ensure(microVM(uid, rikv1alpha1.RestartAlways, root("main", awaitGo+"mount -o remount,rw /p; echo c > /p/sysrq-trigger; sleep 1000")))
	n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
	n.releaseGuest(uid)
	n.rebuilt(uid, 1)
	n.killVMM(uid)
	n.rebuilt(uid, 2)
}

// breaksTheChannel takes the virtio port away from the guest init and writes garbage to it. It
// repeats that, because the guest init may be faster. Then it freezes the VMM of the next
// machine.
func breaksTheChannel(_ *testing.T, n *node, uid string) {
	script := awaitGo + "mount -o remount,rw /s; cd /s/bus/virtio/drivers/virtio_console; " +
		"while :; do for d in virtio*; do echo $d > unbind; echo $d > bind; done; for v in /d/vport*; do cat /dev/urandom > $v & done; sleep 0.2; done"
	n.ensure(microVM(uid, rikv1alpha1.RestartAlways, root("main", script)))
	n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
	n.releaseGuest(uid)
	n.asked(uid)
	n.rebuilt(uid, 1)
	n.freeze(uid)
	n.killed(uid, 0)
}

// freeze stops the VMMs of an instance. A thread handles the signal the next time it is
// scheduled. Until then it may still answer.
func (n *node) freeze(uid string) {
	n.Helper()
	for _, pid := range n.vmms(uid) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			n.Fatal(err)
		}
		eventually(n, func() string {
			threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
			if err != nil || len(threads) == 0 {
				return fmt.Sprintf("process %d has no threads: %v", pid, err)
			}
			for _, name := range threads {
				stat, err := os.ReadFile(name)
				if err != nil {
					return err.Error()
				}
				// The state follows the name, which ends with the last parenthesis.
				if end := bytes.LastIndexByte(stat, ')'); end < 0 || !bytes.HasPrefix(stat[end:], []byte(") T")) {
					return string(stat)
				}
			}
			return ""
		})
	}
}

func (n *node) killVMM(uid string) {
	n.Helper()
	pids := n.vmms(uid)
	if len(pids) != 1 {
		n.Fatalf("VMMs: %v", pids)
	}
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		n.Fatal(err)
	}
}

// A guest that does not answer any more is ended and started again. A guest that answers, or is
// suspended, is not.
func TestPrivilegedHostileSilentGuestIsKilled(t *testing.T) {
	t.Parallel()
	n := newDoubleNode(t)
	n.cfg.HealthInterval, n.cfg.HealthTimeout = 50*time.Millisecond, 3*time.Second
	n.start()
	n.ensure(microVM("u1", rikv1alpha1.RestartAlways, sh("main", forever)))
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	n.suspend(instance.InMemory)
	<-time.After(time.Duration(maxUnanswered+1) * n.cfg.HealthTimeout)
	n.resume()
	n.watched("u1", 3)
	if s := n.status("u1"); s.Containers[0].RestartCount != 0 || len(n.vmms("u1")) == 0 {
		t.Fatalf("a guest that answers, or is suspended, was ended: %+v", s)
	}
	n.freeze("u1")
	s := n.await("u1", "started again", func(s rikv1alpha1.InstanceStatus) bool {
		return s.Containers[0].RestartCount == 1 && s.Containers[0].State == rikv1alpha1.ContainerRunning
	})
	if l := s.Containers[0].LastState; l == nil || l.Reason != reasonVMEnded {
		t.Errorf("its last state is %+v, want %s", l, reasonVMEnded)
	}
	n.stop("u1", time.Second)
}

// watched waits for a number of health checks of an instance.
func (n *node) watched(uid string, times int) {
	n.Helper()
	m := n.driver.machine(uid)
	at := func() time.Time {
		given := make(chan time.Time, 1)
		m.post(func() { given <- m.askedAt })
		return <-given
	}
	for range times {
		before := at()
		eventually(n, func() string {
			if !at().After(before) {
				return "it is not asked"
			}
			return ""
		})
	}
}

// After a failed start, only a guest that does not answer is ended.
func TestPrivilegedHostileSilentGuestIsKilledAfterAStart(t *testing.T) {
	t.Parallel()
	n := newDoubleNode(t)
	n.start()
	n.ensure(microVM("u1", rikv1alpha1.RestartAlways, sh("main", forever)))
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	m := n.driver.machine("u1")
	given := make(chan *shim.Client, 1)
	m.post(func() { given <- m.shim })
	node, supervisor := n.driver.node(), <-given
	node.HealthTimeout = timeout
	microvm.EndIfSilent(t.Context(), node, "u1", supervisor)
	if s := n.status("u1"); s.Containers[0].RestartCount != 0 || len(n.vmms("u1")) == 0 {
		t.Fatalf("a guest that answers was ended: %+v", s)
	}
	n.freeze("u1")
	node.HealthTimeout = 100 * time.Millisecond
	microvm.EndIfSilent(t.Context(), node, "u1", supervisor)
	n.await("u1", "started again", func(s rikv1alpha1.InstanceStatus) bool { return s.Containers[0].RestartCount == 1 })
	n.stop("u1", time.Second)
}
