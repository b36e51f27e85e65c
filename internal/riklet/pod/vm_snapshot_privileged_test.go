package pod

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
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/vmm"
)

// counting counts in its memory, and says every number.
const counting = "trap 'exit 0' TERM; i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.05; done"

// countingVM runs one microVM that counts, with a second container beside it.
func (n *node) countingVM(policy rikv1alpha1.RestartPolicy) {
	n.Helper()
	n.start()
	n.ensure(microVM("u1", policy, sh("main", counting), sh("idle", "date +%N > /mine; "+forever)))
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	n.counted(5)
}

// counted waits until it has counted so much further, and sees that no number is
// missing: nothing that a process says is lost, and none says it twice.
func (n *node) counted(further int) {
	n.Helper()
	began := -1
	eventually(n, func() string {
		last := 0
		for line := range strings.Lines(n.log("u1", "main")) {
			number, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "tick ")))
			if err != nil {
				return "" // it is being written
			}
			if number != last+1 {
				n.Fatalf("after %d it says %q", last, line)
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

// onDisk sees that the instance is suspended and that nothing of it is in memory.
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
	if info, err := os.Stat(n.driver.snapshot("u1")); err != nil || info.Mode().Perm() != 0o700 {
		n.Errorf("the snapshot is %v, %v, want a directory that is root's alone", info, err)
	}
	err := filepath.WalkDir(n.driver.snapshot("u1"), func(path string, e fs.DirEntry, err error) error {
		if info, statErr := e.Info(); err == nil && statErr == nil && !e.IsDir() && info.Mode().Perm() != 0o600 {
			n.Errorf("%s has the mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		n.Error(err)
	}
}

func TestPrivilegedVMIsSuspendedToDisk(t *testing.T) {
	n := newVMNode(t)
	n.countingVM(rikv1alpha1.RestartAlways)
	first, mine, random := n.status("u1"), n.inside("cat", "/mine"), n.inside("cat", "/proc/sys/kernel/random/uuid")
	for round, place := range []instance.Place{instance.OnDisk, instance.InMemory} {
		n.suspend(place)
		for range 2 { // the first may put on disk what is held in memory
			n.suspend(instance.OnDisk)
		}
		n.onDisk()
		if _, err := n.driver.Exec(t.Context(), "u1", "", instance.ExecOptions{Command: []string{"true"}}); !errors.Is(err, instance.ErrNotRunning) {
			t.Errorf("a command in what is on disk: %v", err)
		}
		if round == 0 {
			n.end()
			n.start()
			n.onDisk() // another agent knows it
		}
		n.resume()
		s := n.status("u1")
		if s.Suspended || s.Message != "" || s.Address == "" || s.Containers[0].RestartCount != 0 || !s.Containers[0].StartedAt.Equal(first.Containers[0].StartedAt) {
			t.Errorf("resumed: %+v", s)
		}
		n.counted(5)
		if _, err := os.Stat(n.driver.snapshot("u1")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the snapshot is still there: %v", err)
		}
	}
	if got := n.inside("cat", "/mine"); got != mine {
		t.Errorf("its file says %q, was %q", got, mine)
	}
	if got := n.inside("cat", "/proc/sys/kernel/random/uuid"); got == random {
		t.Errorf("its randomness repeats: %s", got)
	}
	if got := n.inside("hostname"); got != "name-of-u1" {
		t.Errorf("hostname = %q", got)
	}
	now, err := strconv.ParseInt(n.inside("date", "+%s"), 10, 64)
	if off := time.Since(time.Unix(now, 0)); err != nil || off.Abs() > time.Minute {
		t.Errorf("its clock is off by %v (%v)", off, err)
	}
	if address := n.status("u1").Address; !strings.Contains(n.inside("ip", "-o", "-4", "addr"), " "+address+"/") {
		t.Errorf("the guest has not its address %s:\n%s", address, n.inside("ip", "-o", "-4", "addr"))
	}
	n.inside("ping", "-c", "1", "-w", "30", "10.62.7.1") // its gateway
	n.suspend(instance.OnDisk)
	n.stop("u1", time.Second)
	if _, err := os.Stat(n.driver.rootDir("u1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its directory is still there: %v", err)
	}
}

func TestPrivilegedVMIsMeasured(t *testing.T) {
	n := newVMNode(t)
	n.countingVM(rikv1alpha1.RestartAlways)
	measured := func() instance.VMUsage {
		t.Helper()
		u, err := n.driver.Usage("u1")
		if err != nil || u.VM == nil {
			t.Fatalf("Usage() = %+v, %v, want a microVM's", u, err)
		}
		return *u.VM
	}
	first := measured()
	if first.VCPUNanos == 0 || first.DiskReadBytes == 0 || first.DiskReads == 0 {
		t.Errorf("after its boot: %+v", first)
	}
	const written = 4 << 20
	n.inside("sh", "-c", fmt.Sprintf("head -c %d /dev/urandom > /big; sync", written))
	n.inside("ping", "-c", "2", "-s", "1000", "-w", "30", "10.62.7.1")
	second := measured()
	if second.DiskWriteBytes < first.DiskWriteBytes+written || second.DiskWrites <= first.DiskWrites || second.VCPUNanos <= first.VCPUNanos {
		t.Errorf("after writing %d bytes: %+v, before: %+v", written, second, first)
	}
	if second.NetworkReceiveBytes < first.NetworkReceiveBytes+2000 || second.NetworkTransmitBytes < first.NetworkTransmitBytes+2000 {
		t.Errorf("after two pings of 1000 bytes: %+v, before: %+v", second, first)
	}
	n.suspend(instance.InMemory)
	if u, err := n.driver.Usage("u1"); err != nil || u.VM != nil || u.MemoryBytes == 0 {
		t.Errorf("Usage() of one that is suspended = %+v, %v", u, err)
	}
	n.suspend(instance.OnDisk)
	n.onDisk()
	if u, err := n.driver.Usage("u1"); !errors.Is(err, instance.ErrNotRunning) {
		t.Errorf("Usage() of one on disk = %+v, %v", u, err)
	}
	n.stop("u1", time.Second)
}

func TestPrivilegedVMOnDiskOutlivesTheMachine(t *testing.T) {
	n := newVMNode(t)
	n.countingVM(rikv1alpha1.RestartAlways)
	mine := n.inside("cat", "/mine")
	n.suspend(instance.OnDisk)
	n.end()
	n.reboot()
	n.start()
	n.onDisk()
	n.resume()
	n.counted(5)
	if got := n.inside("cat", "/mine"); got != mine {
		t.Errorf("its file says %q, was %q", got, mine)
	}
	n.stop("u1", time.Second)
}

var majorVersion = regexp.MustCompile(`"version":"\d`)

// What cannot be gone on from is said, and the instance is made anew as far as its
// policy has it.
func TestPrivilegedVMWithAnUnsoundSnapshot(t *testing.T) {
	for name, harm := range map[string]func(n *node) error{
		"cut short": func(n *node) error { return os.Truncate(filepath.Join(n.driver.snapshot("u1"), "memory"), 4096) },
		"torn": func(n *node) error { // of the same size
			path := filepath.Join(n.driver.snapshot("u1"), "memory")
			info, err := os.Stat(path)
			if err == nil {
				err = os.Truncate(path, 4096)
			}
			return errors.Join(err, os.Truncate(path, info.Size()))
		},
		"disk was written": func(n *node) error {
			now := time.Now()
			return os.Chtimes(n.driver.scratch("u1"), now, now)
		},
		"of another VMM": func(n *node) error {
			path := filepath.Join(n.driver.snapshot("u1"), "machine.json")
			data, err := os.ReadFile(path)
			// Of the same length: the driver is to find it.
			return errors.Join(err, os.WriteFile(path, majorVersion.ReplaceAll(data, []byte(`"version":"0`)), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newVMNode(t)
			n.countingVM(rikv1alpha1.RestartAlways)
			n.suspend(instance.OnDisk)
			if err := harm(n); err != nil {
				t.Fatal(err)
			}
			err := n.driver.Resume(t.Context(), "u1")
			if !errors.Is(err, instance.ErrLost) || !strings.Contains(err.Error(), "made anew") {
				t.Errorf("Resume() = %v, want ErrLost", err)
			}
			s := n.await("u1", "made anew", func(s rikv1alpha1.InstanceStatus) bool {
				return s.Containers[0].RestartCount == 1 && s.Containers[1].RestartCount == 1
			})
			if l := s.Containers[0].LastState; s.Suspended || l == nil || l.Reason != reasonSnapshotLost || !strings.Contains(l.Message, "its snapshot cannot be used: ") {
				t.Errorf("status = %+v, last %+v", s, l)
			}
			n.inside("true")
			n.stop("u1", time.Second)
		})
	}
}

func TestPrivilegedVMThatMayStartOnceIsNotMadeAnew(t *testing.T) {
	n := newVMNode(t)
	n.countingVM(rikv1alpha1.RestartNever)
	n.suspend(instance.OnDisk)
	n.onDisk()
	n.end()
	// As by an agent that ended while it resumed it.
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

// A resume that fails for another reason can be tried again.
func TestPrivilegedVMStaysOnDiskWhenItCannotGoOnYet(t *testing.T) {
	n := newVMNode(t)
	broken := make(chan bool, 1)
	n.cfg.Hook = func(step string, at lifecycle.Point) error {
		if step == stepMachine && at == lifecycle.BeforeDo {
			select {
			case <-broken:
				return errBroken
			default:
			}
		}
		return nil
	}
	n.countingVM(rikv1alpha1.RestartAlways)
	n.suspend(instance.OnDisk)
	broken <- true
	if err := n.driver.Resume(t.Context(), "u1"); !errors.Is(err, errBroken) {
		t.Errorf("Resume() = %v, want %v", err, errBroken)
	}
	n.onDisk()
	n.resume()
	n.counted(5)
	n.stop("u1", time.Second)
}

// forgetful writes no snapshots.
type forgetful struct{ vmm.Driver }

type forgetfulVM struct{ vmm.VM }

func (d forgetful) Connect(ctx context.Context, m vmm.Machine) (vmm.VM, error) {
	vm, err := d.Driver.Connect(ctx, m)
	return forgetfulVM{vm}, err
}

func (forgetfulVM) Snapshot(context.Context, string) error { return errBroken }

func TestPrivilegedVMGoesOnWhenItCannotBeWritten(t *testing.T) {
	n := newVMNode(t)
	n.vm.Driver = forgetful{n.vm.Driver}
	n.countingVM(rikv1alpha1.RestartAlways)
	if err := n.driver.Suspend(t.Context(), "u1", instance.OnDisk); !errors.Is(err, errBroken) {
		t.Errorf("Suspend() = %v, want %v", err, errBroken)
	}
	if s := n.status("u1"); s.Suspended {
		t.Errorf("status = %+v", s)
	}
	n.counted(5)
	n.suspend(instance.InMemory)
	if err := n.driver.Suspend(t.Context(), "u1", instance.OnDisk); !errors.Is(err, errBroken) {
		t.Errorf("Suspend() = %v, want %v", err, errBroken)
	}
	if s := n.status("u1"); !s.Suspended || s.Message != "" {
		t.Errorf("status = %+v, want it held in memory as before", s)
	}
	n.resume()
	n.counted(5)
	n.stop("u1", time.Second)
}

// Only what has a VMM that writes snapshots can be on disk.
func TestPrivilegedSuspensionToDiskIsRefused(t *testing.T) {
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
