package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/vmm"
)

// counting counts in memory and prints every number. It waits without starting a process, which
// is expensive on an emulated processor.
const counting = "trap 'exit 0' TERM; mkfifo /nobody; exec 3<>/nobody; i=0; while :; do i=$((i+1)); echo tick $i; read -t 0.05 x <&3; done"

// countingVM runs one microVM that counts, with a second, idle container.
func (n *node) countingVM(policy rikv1alpha1.RestartPolicy) {
	n.Helper()
	n.start()
	idle := sh("idle", "date +%N > /mine; "+forever)
	idle.Security = &rikv1alpha1.Security{AddCapabilities: []string{"NET_RAW"}} // for the ping of busybox
	n.ensure(microVM("u1", policy, sh("main", counting), idle))
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	n.counted(5)
}

// counted waits until the count has advanced by further, and checks that no number is missing or
// printed twice.
func (n *node) counted(further int) {
	n.Helper()
	began := -1
	eventually(n, func() string {
		last := 0
		for line := range strings.Lines(n.log("u1", "main")) {
			number, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "tick ")))
			if err != nil {
				return fmt.Sprintf("its last line is being written: %q", line)
			}
			if number != last+1 {
				n.Fatalf("after %d it printed %q", last, line)
			}
			last = number
		}
		if began < 0 {
			began = last
		}
		if last < began+further {
			return fmt.Sprintf("it counted to %d, then %d", began, last)
		}
		return ""
	})
}

func (n *node) inside(command ...string) string {
	n.Helper()
	var out bytes.Buffer
	code, err := n.driver.Exec(n.Context(), "u1", "idle", instance.ExecOptions{Command: command, Stdout: &out, Stderr: &out})
	if err != nil || code != 0 {
		n.Fatalf("%q = %d, %v: %s", command, code, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

func (n *node) suspend(in instance.Place) {
	n.Helper()
	if err := n.driver.Suspend(n.Context(), "u1", in); err != nil {
		n.Fatal(err)
	}
}

func (n *node) resume() {
	n.Helper()
	if err := n.driver.Resume(n.Context(), "u1"); err != nil {
		n.Fatal(err)
	}
}

// onDisk checks that the instance is suspended and that nothing of it is in memory.
func (n *node) onDisk() {
	n.Helper()
	if s := n.status("u1"); !s.Suspended || s.Ready || s.Phase != rikv1alpha1.InstanceRunning || s.Message != onDiskMessage {
		n.Errorf("on disk: %+v", s)
	}
	eventually(n, func() string {
		left := append(processesOf(n.dir), n.network.leftOf("u1")...)
		if d := n.driver; len(left) == 0 && d.cgroups.Exists(d.cgroup("u1")) {
			left = append(left, "its cgroup")
		}
		return strings.Join(left, "\n")
	})
	if info, err := os.Stat(n.snapshot("u1")); err != nil || info.Mode().Perm() != 0o700 {
		n.Errorf("the snapshot is %v, %v, want a directory that is root's alone", info, err)
	}
	err := filepath.WalkDir(n.snapshot("u1"), func(path string, e fs.DirEntry, err error) error {
		if info, statErr := e.Info(); err == nil && statErr == nil && !e.IsDir() && info.Mode().Perm() != 0o600 {
			n.Errorf("%s has the mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		n.Error(err)
	}
}

// machineLife is one microVM and the state that the steps of its test share.
type machineLife struct {
	*node
	fails, breaks atomic.Bool // it cannot be written; its next VMM cannot be made
	first         rikv1alpha1.InstanceStatus
	mine, random  string
}

// TestPrivilegedVM boots one microVM and tests everything that does not end it.
func TestPrivilegedVM(t *testing.T) {
	t.Parallel()
	l := &machineLife{node: newVMNode(t)}
	l.vm.Driver = withoutSnapshots{l.vm.Driver, &l.fails}
	l.cfg.Hook = func(step string, at lifecycle.Point) error {
		if step == stepMachine && at == lifecycle.BeforeDo && l.breaks.CompareAndSwap(true, false) {
			return errBroken
		}
		return nil
	}
	l.countingVM(rikv1alpha1.RestartAlways)
	l.first, l.mine, l.random = l.status("u1"), l.inside("cat", "/mine"), l.inside("cat", "/proc/sys/kernel/random/uuid")
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"IsReached", l.isReached},
		{"IsMeasured", l.isMeasured},
		{"ReturnsDiskSpace", l.returnsDiskSpace},
		{"ContinuesFromMemory", l.continuesFromMemory},
		{"ContinuesAfterAFailedSnapshot", l.continuesAfterAFailedSnapshot},
		{"IsSuspendedToDisk", l.isSuspendedToDisk},
		{"StaysOnDiskIfAResumeFails", l.staysOnDiskIfAResumeFails},
		{"OnDiskSurvivesAReboot", l.onDiskSurvivesAReboot},
		{"IsUnchangedAfterward", l.isUnchangedAfterward},
		{"EndsOnDisk", l.endsOnDisk},
	} {
		if !t.Run(step.name, func(t *testing.T) { l.within(t, step.do) }) {
			t.FailNow()
		}
	}
}

// within runs do so that its failures belong to the subtest t.
func (n *node) within(t *testing.T, do func()) {
	outer := n.TB
	n.TB, n.network.TB = t, t
	defer func() { n.TB, n.network.TB = outer, outer }()
	do()
}

func (l *machineLife) exec(command ...string) (int, string) {
	l.Helper()
	var out bytes.Buffer
	code, err := l.driver.Exec(l.Context(), "u1", "idle", instance.ExecOptions{
		Command: command, Stdin: strings.NewReader("given\n"), Stdout: &out, Stderr: &out,
	})
	if err != nil {
		l.Fatal(err)
	}
	return code, out.String()
}

func (l *machineLife) isReached() {
	if code, out := l.exec("/bin/sh", "-c", "cat; hostname; exit 9"); code != 9 || out != "given\nname-of-u1\n" {
		l.Errorf("exec = %d, %q", code, out)
	}
	if code, out := l.exec("no-such-program"); code != 127 {
		l.Errorf("exec of a missing program = %d, %q", code, out)
	}
	if got := l.inside("cat", "/proc/sys/net/ipv4/ping_group_range"); got != "0\t2147483647" {
		l.Errorf("the groups that may ping are %q", got)
	}
}

// measured returns what the VMM counts. A busy VMM may not answer, so measured retries.
func (l *machineLife) measured() (u *instance.VMUsage) {
	l.Helper()
	eventually(l, func() string {
		all, err := l.driver.Usage("u1")
		if err != nil || all.VM == nil || all.MemoryBytes == 0 {
			return fmt.Sprintf("Usage() = %+v, %v, want a microVM's", all, err)
		}
		u = all.VM
		return ""
	})
	return u
}

func (l *machineLife) isMeasured() {
	first := l.measured()
	if first.VcpuNanos == 0 || first.DiskReadBytes == 0 || first.DiskReads == 0 {
		l.Errorf("after its boot: %+v", first)
	}
	const written = 4 << 20
	l.inside("sh", "-c", fmt.Sprintf("head -c %d /dev/zero > /big; sync", written))
	l.inside("ping", "-c", "2", "-s", "1000", "-w", "30", "10.62.7.1")
	second := l.measured()
	if second.DiskWriteBytes < first.DiskWriteBytes+written || second.DiskWrites <= first.DiskWrites || second.VcpuNanos <= first.VcpuNanos {
		l.Errorf("after writing %d bytes: %+v, before: %+v", written, second, first)
	}
	if second.NetworkReceiveBytes < first.NetworkReceiveBytes+2000 || second.NetworkTransmitBytes < first.NetworkTransmitBytes+2000 {
		l.Errorf("after two pings of 1000 bytes: %+v, before: %+v", second, first)
	}
}

// The disk space of files that are deleted inside returns to the node.
func (l *machineLife) returnsDiskSpace() {
	taken := func() int64 {
		size, _ := onDisk(filepath.Dir(l.scratch("u1")))
		return size
	}
	const size = 48 << 20
	before := taken()
	l.inside("sh", "-c", fmt.Sprintf("head -c %d /dev/urandom > /large; sync", size))
	if got := taken(); got < before+size*3/4 {
		l.Errorf("a file of %d bytes takes %d on the node: it is not what the test thinks", size, got-before)
	}
	l.inside("sh", "-c", "rm /large; sync")
	eventually(l, func() string {
		l.inside("sync") // the discard follows the commit of the journal
		if got := taken(); got > before+size/4 {
			return fmt.Sprintf("%d bytes are taken on the node, before the file it were %d", got, before)
		}
		return ""
	})
}

func (l *machineLife) continuesFromMemory() {
	l.suspend(instance.InMemory)
	if u, err := l.driver.Usage("u1"); err != nil || u.VM != nil || u.MemoryBytes == 0 {
		l.Errorf("Usage() of one that is suspended = %+v, %v", u, err)
	}
	l.end()
	l.start()
	if s := l.status("u1"); !s.Suspended {
		l.Errorf("after a restart: %+v", s)
	}
	l.resume()
	if code, out := l.exec("/bin/date", "+%s"); code != 0 {
		l.Errorf("date = %d, %q", code, out)
	}
	if s := l.awaitPhase("u1", rikv1alpha1.InstanceRunning); !s.Containers[0].StartedAt.Equal(l.first.Containers[0].StartedAt) {
		l.Errorf("it did not live on: %+v", s)
	}
	l.measured()
	l.counted(5)
}

// withoutSnapshots is a VMM driver that writes no snapshots while fails is set.
type withoutSnapshots struct {
	vmm.Driver
	fails *atomic.Bool
}

type forgetfulVM struct {
	vmm.VM
	fails *atomic.Bool
}

func (d withoutSnapshots) Connect(ctx context.Context, m vmm.Machine) (vmm.VM, error) {
	vm, err := d.Driver.Connect(ctx, m)
	if err != nil {
		return nil, err
	}
	return forgetfulVM{vm, d.fails}, nil
}

func (v forgetfulVM) Snapshot(ctx context.Context, dir string) error {
	if v.fails.Load() {
		return errBroken
	}
	return v.VM.Snapshot(ctx, dir)
}

func (l *machineLife) continuesAfterAFailedSnapshot() {
	l.fails.Store(true)
	if err := l.driver.Suspend(l.Context(), "u1", instance.OnDisk); !errors.Is(err, errBroken) {
		l.Errorf("Suspend() = %v, want %v", err, errBroken)
	}
	if s := l.status("u1"); s.Suspended {
		l.Errorf("status = %+v", s)
	}
	l.counted(5)
	l.suspend(instance.InMemory)
	if err := l.driver.Suspend(l.Context(), "u1", instance.OnDisk); !errors.Is(err, errBroken) {
		l.Errorf("Suspend() = %v, want %v", err, errBroken)
	}
	if s := l.status("u1"); !s.Suspended || s.Message != "" {
		l.Errorf("status = %+v, want it held in memory as before", s)
	}
	l.fails.Store(false)
	l.resume()
	l.counted(5)
}

func (l *machineLife) isSuspendedToDisk() {
	for round, place := range []instance.Place{instance.OnDisk, instance.InMemory} {
		l.suspend(place)
		for range 2 { // the instance may be suspended in memory before the first one
			l.suspend(instance.OnDisk)
		}
		l.onDisk()
		if _, err := l.driver.Exec(l.Context(), "u1", "", instance.ExecOptions{Command: []string{"true"}}); !errors.Is(err, instance.ErrNotRunning) {
			l.Errorf("a command in an instance on disk: %v", err)
		}
		if u, err := l.driver.Usage("u1"); !errors.Is(err, instance.ErrNotRunning) {
			l.Errorf("Usage() of one on disk = %+v, %v", u, err)
		}
		if round == 0 {
			l.end()
			l.start()
			l.onDisk() // a restarted riklet still has it
		}
		l.resumedFromDisk()
	}
}

// resumedFromDisk resumes the instance, and checks that it is the same one.
func (l *machineLife) resumedFromDisk() {
	l.Helper()
	l.resume()
	s := l.status("u1")
	if s.Suspended || s.Message != "" || s.Address == "" || s.Containers[0].RestartCount != 0 || !s.Containers[0].StartedAt.Equal(l.first.Containers[0].StartedAt) {
		l.Errorf("resumed: %+v", s)
	}
	l.counted(5)
	if _, err := os.Stat(l.snapshot("u1")); !errors.Is(err, fs.ErrNotExist) {
		l.Errorf("the snapshot is still there: %v", err)
	}
	if got := l.inside("cat", "/mine"); got != l.mine {
		l.Errorf("its file contains %q, was %q", got, l.mine)
	}
}

// A resume that fails for a reason other than its snapshot can be retried.
func (l *machineLife) staysOnDiskIfAResumeFails() {
	l.suspend(instance.OnDisk)
	l.breaks.Store(true)
	if err := l.driver.Resume(l.Context(), "u1"); !errors.Is(err, errBroken) {
		l.Errorf("Resume() = %v, want %v", err, errBroken)
	}
	l.onDisk()
}

func (l *machineLife) onDiskSurvivesAReboot() {
	l.end()
	l.reboot()
	l.start()
	l.onDisk()
	l.resumedFromDisk()
}

func (l *machineLife) isUnchangedAfterward() {
	if got := l.inside("cat", "/proc/sys/kernel/random/uuid"); got == l.random {
		l.Errorf("its randomness repeats: %s", got)
	}
	if got := l.inside("hostname"); got != "name-of-u1" {
		l.Errorf("hostname = %q", got)
	}
	now, err := strconv.ParseInt(l.inside("date", "+%s"), 10, 64)
	if off := time.Since(time.Unix(now, 0)); err != nil || off.Abs() > time.Minute {
		l.Errorf("its clock is off by %v (%v)", off, err)
	}
	if address := l.status("u1").Address; !strings.Contains(l.inside("ip", "-o", "-4", "addr"), " "+address+"/") {
		l.Errorf("the guest has not its address %s:\n%s", address, l.inside("ip", "-o", "-4", "addr"))
	}
	l.inside("ping", "-c", "1", "-w", "30", "10.62.7.1") // its gateway
}

func (l *machineLife) endsOnDisk() {
	l.suspend(instance.OnDisk)
	l.stop("u1", time.Second)
	if _, err := os.Stat(l.driver.paths.RootDir("u1")); !errors.Is(err, fs.ErrNotExist) {
		l.Errorf("its directory is still there: %v", err)
	}
}

var majorVersion = regexp.MustCompile(`"version":"\d`)

// If a snapshot cannot be used, that is reported, and the instance is started again as far as its
// restart policy allows.
func TestPrivilegedVMWithAnUnsoundSnapshot(t *testing.T) {
	t.Parallel()
	n := newVMNode(t)
	n.vm.Driver = slowToFail{n.vm.Driver}
	n.countingVM(rikv1alpha1.RestartAlways)
	for name, harm := range map[string]func() error{
		"cut short": func() error { return os.Truncate(filepath.Join(n.snapshot("u1"), "memory"), 4096) },
		"torn": func() error { // of the same size
			path := filepath.Join(n.snapshot("u1"), "memory")
			info, err := os.Stat(path)
			if err == nil {
				err = os.Truncate(path, 4096)
			}
			return errors.Join(err, os.Truncate(path, info.Size()))
		},
		"disk was written": func() error {
			now := time.Now()
			return os.Chtimes(n.scratch("u1"), now, now)
		},
		"of another VMM": func() error {
			path := filepath.Join(n.snapshot("u1"), "machine.json")
			data, err := os.ReadFile(path)
			// Of the same length: the driver must detect the change.
			return errors.Join(err, os.WriteFile(path, majorVersion.ReplaceAll(data, []byte(`"version":"0`)), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n.within(t, func() { n.losesItsSnapshot(harm) })
		})
		if t.Failed() {
			return
		}
	}
	n.stop("u1", time.Second)
}

// slowToFail makes the end of a VMM visible before the error of its start, as on a busy machine.
// The snapshot counts as lost in this case too.
type slowToFail struct{ vmm.Driver }

type slowToFailVM struct{ vmm.VM }

func (d slowToFail) Connect(ctx context.Context, m vmm.Machine) (vmm.VM, error) {
	vm, err := d.Driver.Connect(ctx, m)
	if err != nil {
		return nil, err
	}
	return slowToFailVM{vm}, nil
}

func (v slowToFailVM) Start(ctx context.Context) error {
	err := v.VM.Start(ctx)
	if err != nil {
		<-ctx.Done()
	}
	return err
}

// losesItsSnapshot damages the snapshot of a microVM and checks that the instance starts again.
func (n *node) losesItsSnapshot(harm func() error) {
	n.Helper()
	before := n.status("u1").Containers[0].RestartCount
	n.suspend(instance.OnDisk)
	if err := harm(); err != nil {
		n.Fatal(err)
	}
	err := n.driver.Resume(n.Context(), "u1")
	if !errors.Is(err, instance.ErrLost) || !strings.Contains(err.Error(), "starts again") {
		n.Errorf("Resume() = %v, want ErrLost", err)
	}
	s := n.await("u1", "starts again", func(s rikv1alpha1.InstanceStatus) bool {
		for _, c := range s.Containers {
			if c.RestartCount != before+1 || c.State != rikv1alpha1.ContainerRunning {
				return false
			}
		}
		return true
	})
	if l := s.Containers[0].LastState; s.Suspended || l == nil || l.Reason != reasonSnapshotLost || !strings.Contains(l.Message, "its snapshot cannot be used: ") {
		n.Errorf("status = %+v, last %+v", s, l)
	}
	n.inside("true")
	n.counted(5) // from the start
}

func TestPrivilegedVMThatMayStartOnceIsNotRecreated(t *testing.T) {
	t.Parallel()
	n := newVMNode(t)
	n.countingVM(rikv1alpha1.RestartNever)
	n.suspend(instance.OnDisk)
	n.onDisk()
	n.end()
	// As left by a riklet that ended during the resume.
	if err := os.Remove(filepath.Join(n.cfg.Root, "pods", "u1", "snapshot", "instance.json")); err != nil {
		t.Fatal(err)
	}
	n.start()
	s := n.awaitPhase2("u1", rikv1alpha1.InstanceFailed)
	if s.Reason != reasonSnapshotLost || !strings.Contains(s.Message, "while the instance was being resumed") {
		t.Errorf("status = %+v", s)
	}
	n.stop("u1", time.Second)
}

// Only an instance whose VMM writes snapshots can be suspended to disk.
func TestPrivilegedSuspensionToDiskIsRefused(t *testing.T) {
	t.Parallel()
	n := newDoubleNode(t)
	n.start()
	n.ensure(podOf("pod", rikv1alpha1.RestartAlways, sh("main", forever)))
	n.ensure(microVM("vm", rikv1alpha1.RestartAlways, sh("main", forever)))
	for uid, want := range map[string]string{"pod": "only microVMs", "vm": "VMM writes no snapshots"} {
		n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
		err := n.driver.Suspend(t.Context(), uid, instance.OnDisk)
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("Suspend() of %s = %v, want ErrUnsupported and %q", uid, err, want)
		}
		if s := n.status(uid); s.Suspended {
			t.Errorf("status of %s = %+v", uid, s)
		}
		n.stop(uid, time.Second)
	}
}
