package runner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/disk"
	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/microvm"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/qemu"
	"rik.dev/rik/internal/riklet/vmm/vmmfake"
)

// newVMNode returns a node with a network that runs microVMs under software emulation.
func newVMNode(t *testing.T) *node { return newNodeOf(t, qemuName) }

// newDoubleNode returns a node with a fake VMM. Everything else is real.
func newDoubleNode(t *testing.T) *node { return newNodeOf(t, vmmfake.Driver{}.Name()) }

const qemuName = "qemu"

func newNodeOf(t *testing.T, driver string) *node {
	t.Helper()
	n := newNetworkNode(t)
	err := linkStore(n.dir, "disks", madeDisks)
	if err == nil {
		n.vm, err = openVM(n.dir, driver)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// openVM returns the VM configuration of a node in dir, without its disks.
func openVM(dir, driver string) (*microvm.Config, error) {
	if driver != qemuName {
		kernel := filepath.Join(dir, "kernel")
		err := os.WriteFile(kernel, []byte("of no guest"), 0o644)
		return &microvm.Config{Driver: vmmfake.Driver{Program: tools.vmm}, Kernel: kernel, Initramfs: kernel}, err
	}
	d, err := qemuDriver()
	kernel, initramfs := guestFiles()
	return &microvm.Config{Driver: d, Kernel: kernel, Initramfs: initramfs}, err
}

func guestFiles() (kernel, initramfs string) {
	files := os.Getenv("RIK_GUEST")
	return filepath.Join(files, "kernel"), filepath.Join(files, "initramfs")
}

// qemuDriver is shared, because a new driver boots a guest to check that it can. It retries if
// the machine was too busy.
var qemuDriver = sync.OnceValues(func() (vmm.Driver, error) {
	if os.Getenv("RIK_GUEST") == "" {
		return nil, errors.New("RIK_GUEST names no folder with a guest's kernel and initramfs: run the tests with make, or after hack/guest.sh")
	}
	kernel, initramfs := guestFiles()
	var errs []error
	for range 3 {
		d, err := qemu.New(qemu.Config{Kernel: kernel, Initramfs: initramfs, StateDir: tools.dir, Accelerator: qemu.TCG})
		if err != nil {
			return nil, err
		}
		if _, err = d.Probe(context.Background()); err == nil {
			return d, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
})

func openDisks(dir string, images *image.Store) (*disk.Dir, error) {
	return disk.New(disk.Config{Root: filepath.Join(dir, "disks"), Images: images, Unpacker: []string{"/proc/self/exe", "unpack"}})
}

func (n *node) openDisks() (*disk.Dir, error) { return openDisks(n.dir, n.images) }

func microVM(uid string, policy rikv1alpha1.RestartPolicy, containers ...rikv1alpha1.Container) instance.Instance {
	in := podOf(uid, policy, containers...)
	in.Template.Isolation = rikv1alpha1.IsolationMicroVM
	return in
}

func TestPrivilegedVMRunsToCompletion(t *testing.T) {
	t.Parallel()
	n := newVMNode(t).bare()
	n.start()
	in := microVM("u1", rikv1alpha1.RestartNever,
		sh("main", "uname -r; hostname; cat /in/word; echo out; echo err >&2; cat /etc/resolv.conf; echo late > /shared/x; exit 4"),
		sh("second", "until [ -e /shared/x ]; do sleep 0.1; done; cat /shared/x"))
	n.objects.setConfigMap("c", map[string][]byte{"word": []byte("of the map\n")})
	in.Template.Volumes = []rikv1alpha1.Volume{
		{Name: "map", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "c"}}, {Name: "shared", EmptyDir: &rikv1alpha1.EmptyDirVolume{}},
	}
	in.Template.Containers[0].VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "map", MountPath: "/in"}, {Name: "shared", MountPath: "/shared"}}
	in.Template.Containers[1].VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "shared", MountPath: "/shared"}}
	n.ensure(in)
	s := n.awaitPhase2("u1", rikv1alpha1.InstanceFailed)
	if c := s.Containers[0]; c.ExitCode == nil || *c.ExitCode != 4 || c.ImageDigest == "" {
		t.Errorf("container = %+v", c)
	}
	if c := s.Containers[1]; c.ExitCode == nil || *c.ExitCode != 0 {
		t.Errorf("container = %+v", c)
	}
	log := n.log("u1", "main")
	for _, want := range []string{"name-of-u1\n", "of the map\n", "out\n", "err\n", "nameserver 10.62.7.1\n"} {
		if !strings.Contains(log, want) {
			t.Errorf("no %q in the log:\n%s", want, log)
		}
	}
	if release, err := readFile("/proc/sys/kernel/osrelease"); err != nil || strings.Contains(log, release) {
		t.Errorf("it has the node's own kernel:\n%s", log)
	}
	if log := n.log("u1", "second"); log != "late\n" {
		t.Errorf("the second container printed %q", log)
	}
	n.stop("u1", -1)
}

// miscalibrated makes the first guests of its machines detect a badly calibrated kernel timer,
// which happens when a busy node delays the kernel.
type miscalibrated struct {
	vmm.Driver
	left *atomic.Int32
}

func (d miscalibrated) Prepare(ctx context.Context, m vmm.Machine) (launch.Process, error) {
	if d.left.Add(-1) >= 0 {
		m.CommandLine += " " + guest.TimerParameter + "=1000"
	}
	return d.Driver.Prepare(ctx, m)
}

// A machine whose kernel started in an unusable state is booted again. That includes instances
// with restart policy Never, because their containers have not started.
func TestPrivilegedVMIsBootedAgain(t *testing.T) {
	t.Parallel()
	n := newVMNode(t)
	left := &atomic.Int32{}
	left.Store(1)
	n.vm.Driver = miscalibrated{n.vm.Driver, left}
	n.start()
	n.ensure(microVM("u1", rikv1alpha1.RestartNever, sh("main", "echo once")))
	s := n.awaitPhase2("u1", rikv1alpha1.InstanceCompleted)
	if log := n.log("u1", "main"); log != "once\n" || s.Containers[0].RestartCount != 0 || left.Load() >= 0 {
		t.Errorf("it printed %q: %+v", log, s)
	}
	n.stop("u1", -1)
}
