package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/testkit/privileged"
)

// censusIgnores matches counters in the kernel's output about rules.
var censusIgnores = regexp.MustCompile(`\[\d+:\d+\]|(?m)^#.*$|counter packets \d+ bytes \d+`)

// census lists everything that instances could leave on a node, without the driver's help: devices,
// addresses, routes, rules, mounts, cgroups, processes and files. It also lists the sockets, TAPs
// and namespaces that this process holds.
func (n *node) census() map[string][]string {
	n.Helper()
	c := map[string][]string{
		"devices": {}, "addresses": strings.Fields(n.network.run("ip", "-o", "-4", "addr", "show", "dev", "rik0")),
		"routes":  strings.Split(n.network.run("ip", "route", "show", "table", "all"), "\n"),
		"queues":  strings.Split(n.network.run("tc", "filter", "show", "dev", "rik0"), "\n"),
		"filters": strings.Split(censusIgnores.ReplaceAllString(n.network.run("iptables-save"), ""), "\n"),
	}
	for line := range strings.Lines(n.network.run("ip", "-o", "link")) {
		name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
		c["devices"] = append(c["devices"], name)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, n.dir+"/") {
			c["mounts"] = append(c["mounts"], strings.Fields(line)[4])
		}
	}
	if layout, err := cgroup.Detect(); err == nil {
		c["cgroups"] = layout.Children(n.cfg.CgroupParent)
	}
	for _, p := range processesOf(n.dir) {
		_, command, _ := strings.Cut(p, " ")
		c["processes"] = append(c["processes"], command)
	}
	_ = filepath.WalkDir(n.dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			c["files"] = append(c["files"], path)
		}
		return nil
	})
	c["descriptors"] = descriptors()
	for _, list := range c {
		slices.Sort(list)
	}
	return c
}

// descriptors lists what an instance could have left open in this process: the number of sockets,
// and namespaces, TAPs and deleted files.
func descriptors() []string {
	var held []string
	sockets := 0
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		switch {
		case err != nil:
		case strings.HasPrefix(target, "socket:"):
			sockets++
		case strings.HasPrefix(target, "net:"), strings.HasPrefix(target, "mnt:"), strings.HasPrefix(target, "/dev/net"), strings.HasSuffix(target, "(deleted)"):
			held = append(held, target)
		}
	}
	return append(held, fmt.Sprintf("%d sockets", sockets))
}

// settled compares two censuses with retries, because other goroutines close some of the files.
func (n *node) settled(before map[string][]string) {
	n.Helper()
	eventually(n, func() string { return cmp.Diff(before, n.census()) })
}

// churn creates and deletes count microVMs in one driver, some at a time. The script prints "up"
// and ends on SIGTERM.
func (n *node) churn(count, atOnce int, script string) {
	n.Helper()
	n.start()
	addresses := map[string]bool{}
	some := func(uids []string) {
		for _, uid := range uids {
			n.ensure(microVM(uid, rikv1alpha1.RestartAlways, sh("main", script)))
		}
		for _, uid := range uids {
			addresses[n.awaitPhase(uid, rikv1alpha1.InstanceRunning).Address] = true
			n.isUp(uid)
			n.driver.Stop(uid, time.Minute)
		}
		for _, uid := range uids {
			n.stop(uid, time.Minute)
		}
	}
	some([]string{"first"}) // permanent objects exist from now on
	before := n.census()
	var uids []string
	for i := range count {
		uids = append(uids, fmt.Sprintf("u%d", i))
	}
	for batch := range slices.Chunk(uids, atOnce) {
		some(batch)
	}
	n.settled(before)
	if len(addresses) > n.network.hosts() || addresses[""] {
		n.Errorf("%d microVMs had the addresses %v", count, addresses)
	}
}

// hosts is how many addresses the range has for instances: all but the first, the bridge's and
// the last.
func (w *network) hosts() int { return 1<<(32-w.settings.PodCIDR.Bits()) - 3 }

// Once 64 microVMs used up a range, because their TAPs stayed. This test creates more microVMs
// than the range has addresses. Their VMM is a fake; everything else is real.
func TestPrivilegedFault16Fault17VMsLeaveNothing(t *testing.T) {
	n := newDoubleNode(t)
	if !privileged.Long() {
		n.network.settings.PodCIDR = netip.PrefixFrom(n.network.settings.PodCIDR.Addr(), 27) // 29 addresses, not 253
	}
	n.churn(n.network.hosts()+7, 4, "echo up; exec sleep 1000")
}

// The same with guests that boot: 200 of them in a long run, three otherwise.
func TestPrivilegedFault16Fault17RealVMsLeaveNothing(t *testing.T) {
	count := 3
	if privileged.Long() {
		count = 200
	}
	newVMNode(t).churn(count, 2, upForever)
}

// brokenVMM is a VMM driver that fails at the call in at.
type brokenVMM struct {
	vmm.Driver
	at atomic.Value // string
}

var errBroken = errors.New("the VMM is broken")

func (b *brokenVMM) Prepare(ctx context.Context, m vmm.Machine) (launch.Process, error) {
	p, err := b.Driver.Prepare(ctx, m)
	switch b.at.Load() {
	case "prepare":
		err = errors.Join(err, errBroken)
	case "run":
		p.Argv = []string{"/bin/sh", "-c", "echo no memory here; exit 7"}
	}
	return p, err
}

func (b *brokenVMM) Connect(ctx context.Context, m vmm.Machine) (vmm.VM, error) {
	if b.at.Load() == "connect" {
		return nil, errBroken
	}
	return b.Driver.Connect(ctx, m)
}

// A start that failed once left its TAP, rules and files, and then the next start failed because
// of them.
func TestPrivilegedFault18FailedVMIsRemoved(t *testing.T) {
	for at, want := range map[string]string{
		"prepare": errBroken.Error(), "connect": errBroken.Error(), "run": "the VMM ended with 7: no memory here",
	} {
		t.Run(at, func(t *testing.T) {
			n := newDoubleNode(t)
			driver := &brokenVMM{Driver: n.vm.Driver}
			n.vm.Driver = driver
			n.start()
			n.ensure(microVM("first", rikv1alpha1.RestartAlways, sh("main", forever)))
			n.awaitPhase("first", rikv1alpha1.InstanceRunning)
			n.stop("first", 0)
			before := n.census()
			driver.at.Store(at)
			n.ensure(microVM("once", rikv1alpha1.RestartNever, sh("main", forever)))
			if s := n.awaitPhase("once", rikv1alpha1.InstanceFailed); s.Reason != reasonPrepare || !strings.Contains(s.Message, want) {
				t.Errorf("status = %+v, want %q", s, want)
			}
			n.ensure(microVM("again", rikv1alpha1.RestartAlways, sh("main", forever)))
			n.await("again", "failing", func(s rikv1alpha1.InstanceStatus) bool { return strings.Contains(s.Message, want) })
			driver.at.Store("")
			n.awaitPhase("again", rikv1alpha1.InstanceRunning)
			n.stop("again", 0)
			n.stop("once", 0)
			n.settled(before)
		})
	}
}

// vmms returns the PIDs of an instance's VMM.
func (n *node) vmms(uid string) []int {
	n.Helper()
	layout, err := cgroup.Detect()
	if err != nil {
		n.Fatal(err)
	}
	return layout.Processes(n.cfg.CgroupParent + "/" + uid + "/" + engine.VMM)
}

// MicroVMs once died with the riklet, and had neither log nor console.
func TestPrivilegedFault21VMSurvivesTheRiklet(t *testing.T) {
	t.Parallel()
	n := newVMNode(t)
	in := microVM("u1", rikv1alpha1.RestartAlways, sh("main", "echo up; "+forever))
	n.killedWhileRunning(in)
	before := n.vmms("u1")
	if len(before) != 1 {
		t.Fatalf("VMMs after the agent's end: %v", before)
	}
	for range 2 {
		d := n.start()
		if s := n.awaitPhase("u1", rikv1alpha1.InstanceRunning); s.Containers[0].RestartCount != 0 || s.Address == "" {
			t.Errorf("status = %+v", s)
		}
		if code, err := d.Exec(t.Context(), "u1", "", instance.ExecOptions{Command: []string{"true"}}); err != nil || code != 0 {
			t.Errorf("Exec() = %d, %v", code, err)
		}
		eventually(t, func() string { return cmp.Diff("up\n", n.log("u1", "main")) }) // the process may have just begun
		n.log("u1", rikv1alpha1.ConsoleLog)                                           // fails if there is no console log
		n.end()
	}
	n.start()
	if after := n.vmms("u1"); !slices.Equal(before, after) {
		t.Errorf("VMMs = %v, were %v", after, before)
	}
	n.stop("u1", time.Second)
}

// countedVM returns an instance that logs its starts on the node. That works because the
// containers of a fake VMM run on the node.
func countedVM(t testing.TB, uid string) (in instance.Instance, dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "rikstarts")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	in = microVM(uid, rikv1alpha1.RestartAlways, sh("main", "echo start >> "+dir+"/starts; "+upForever))
	return in, dir
}

const (
	stepMachine = "machine"
	stepGuest   = "guest"
)

func TestPrivilegedFault21KilledAtEveryStepOfAVMsStart(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"directories", stepSupervisor, stepNetwork, stepImage, stepMachine, stepGuest, stepBundle, stepStart} {
		for _, at := range []lifecycle.Point{lifecycle.BeforeDo, lifecycle.AfterDo} {
			t.Run(fmt.Sprintf("%s %s", at, step), func(t *testing.T) {
				t.Parallel()
				n := newDoubleNode(t)
				if step == stepImage {
					n.bare()
				}
				in, dir := countedVM(t, "u1")
				n.dies(hosting{Instance: in, KillStep: step, KillAt: at})
				n.oneVM(in)
				if got := starts(dir); got != 1 {
					t.Errorf("the container was started %d times, want once", got)
				}
			})
		}
	}
}

// isUp waits until a script handles signals and has printed "up".
func (n *node) isUp(uid string) {
	n.Helper()
	eventually(n, func() string { return cmp.Diff("up\n", n.log(uid, "")) })
}

// oneVM recovers what a killed riklet left. It checks that there is exactly one machine, and that a
// stop leaves nothing.
func (n *node) oneVM(in instance.Instance) {
	n.Helper()
	n.start()
	n.ensure(in)
	s := n.awaitPhase(in.UID, rikv1alpha1.InstanceRunning)
	if s.Containers[0].RestartCount != 0 {
		n.Errorf("restarts = %d, want 0", s.Containers[0].RestartCount)
	}
	if pids := n.vmms(in.UID); len(pids) == 0 {
		n.Error("no VMM runs")
	}
	vms := 0
	for _, p := range processesOf(n.dir) {
		if strings.Contains(p, " in "+n.cfg.Run+"/vm/") {
			vms++
		}
	}
	if vms > 1 {
		n.Errorf("%d VMMs run: %q", vms, processesOf(n.dir))
	}
	n.isUp(in.UID)
	n.stop(in.UID, time.Minute)
	if left := processesOf(n.dir); len(left) > 0 {
		n.Errorf("processes left: %q", left)
	}
}

// The same for the steps at which a real guest makes a difference.
func TestPrivilegedFault21KilledWhileARealVMStarts(t *testing.T) {
	t.Parallel()
	for _, step := range []string{stepMachine, stepGuest, stepStart} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			n := newVMNode(t)
			in := microVM("u1", rikv1alpha1.RestartAlways, sh("main", upForever))
			n.dies(hosting{Instance: in, KillStep: step, KillAt: lifecycle.AfterDo})
			n.oneVM(in)
		})
	}
}

func TestPrivilegedFault21KilledAtEveryStepOfAVMsStop(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"directories", stepSupervisor, stepNetwork, stepImage, stepMachine, stepBundle} {
		for _, at := range []lifecycle.Point{lifecycle.BeforeUndo, lifecycle.AfterUndo} {
			t.Run(fmt.Sprintf("%s %s", at, step), func(t *testing.T) {
				t.Parallel()
				n := newDoubleNode(t)
				in, dir := countedVM(t, "u1")
				n.dies(hosting{Instance: in, KillStep: step, KillAt: at, Stop: true})
				n.start()
				n.awaitPhase("u1", rikv1alpha1.InstanceTerminated) // without another order
				n.stop("u1", -1)
				if got := starts(dir); got > 1 {
					t.Errorf("the container was started %d times", got)
				}
				if left := processesOf(n.dir); len(left) > 0 {
					t.Errorf("processes left: %q", left)
				}
			})
		}
	}
}

func TestPrivilegedFault17OrphanedVMsAreRemoved(t *testing.T) {
	t.Parallel()
	for _, step := range []string{stepNetwork, stepMachine, stepGuest, stepStart} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			n := newDoubleNode(t)
			in, _ := countedVM(t, "u1")
			n.dies(hosting{Instance: in, KillStep: step, KillAt: lifecycle.AfterDo})
			if err := os.Remove(filepath.Join(n.cfg.Root, "pods.db")); err != nil {
				t.Fatal(err)
			}
			if got := n.start().List(); len(got) != 0 {
				t.Errorf("List() = %v, want nothing known", got)
			}
			if left := n.leftOf("u1"); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			eventually(t, func() string { return strings.Join(processesOf(n.dir), "\n") })
		})
	}
}
