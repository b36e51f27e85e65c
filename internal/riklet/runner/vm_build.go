package runner

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/disk"
	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/network/tap"
	"rik.dev/rik/internal/riklet/progress"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/logfile"
	"rik.dev/rik/internal/riklet/vmm"
)

// vmBuild creates the machine of an instance.
type vmBuild struct {
	*build
	vm *VM

	images map[string]*disk.Image // by container
	was    snapshotNote           // the snapshot from which it resumes
	note   vmNote
	// replaced is true if the guest could not use its disk and got another one.
	replaced bool
}

// fetch fetches the root file system of every container, because a VM has all its disks from its
// start.
func (v *vmBuild) fetch(ctx context.Context) error {
	v.images = map[string]*disk.Image{}
	return progress.Watch(ctx, v.report, func(ctx context.Context) error {
		for _, c := range allContainers(v.in.Template) {
			img, err := v.root(ctx, c)
			if err != nil {
				return fmt.Errorf("container %q: %w", c.Name, err)
			}
			v.images[c.Name] = img
		}
		return nil
	})
}

func (v *vmBuild) root(ctx context.Context, c rikv1alpha1.Container) (*disk.Image, error) {
	if f := v.in.Template.Function; f != nil && f.Execution.Rootfs != "" {
		return v.vm.Disks.FromURL(ctx, v.in.UID, disk.URLRequest{URL: f.Execution.Rootfs, SHA256: f.Execution.SHA256})
	}
	auth, err := v.d.pullSecret(ctx, v.in)
	if err != nil {
		return nil, err
	}
	pulled, err := v.d.cfg.Images.Pull(ctx, image.PullRequest{Reference: c.Image, Policy: c.ImagePullPolicy, Auth: auth})
	if err != nil {
		return nil, err
	}
	return v.vm.Disks.FromImage(ctx, v.in.UID, pulled)
}

// machine starts the VMM, which boots the guest's kernel.
func (v *vmBuild) machine(ctx context.Context) error {
	if err := v.describe(ctx); err != nil {
		return err
	}
	release, err := v.d.bootTurn(ctx, bootTurnMost)
	if err != nil {
		return err
	}
	v.done = append(v.done, release)
	return v.launch(ctx)
}

// launch starts the VMM of the machine in note.
func (v *vmBuild) launch(ctx context.Context) error {
	m, size := v.note.Machine, sizeOf(v.in.Template)
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return err
	}
	procs, err := v.d.cgroups.Create(v.d.cgroup(v.in.UID)+"/"+vmmContainer, cgroup.Limits{
		MemoryBytes: size.memory + vmmOverhead, MilliCPU: size.milliCPU, PIDs: vmmThreads,
	})
	if err != nil {
		return err
	}
	m.Cgroups = procs
	v.note.Machine = m
	process, err := v.vm.Driver.Prepare(ctx, m)
	if v.restore && errors.Is(err, vmm.ErrInvalid) {
		return &snapshotError{err}
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(v.d.bundle(v.in.UID, vmmContainer), 0o700); err != nil {
		return err
	}
	d, uid := v.d, v.in.UID
	last, _ := d.lastRun(uid, vmmContainer)
	if _, err := v.shim.Start(ctx, shim.Start{
		Container: vmmContainer, Attempt: last + 1, Process: &process,
		LogDir: d.logDir(uid, vmmContainer), LogLimits: d.cfg.LogLimits,
		MarkFile: d.markFile(uid, vmmContainer), ExitFile: d.exitFile(uid, vmmContainer),
	}); err != nil {
		return err
	}
	return v.alive(ctx, v.startVM)
}

// startVM orders the running VMM to start or restore the machine.
func (v *vmBuild) startVM(ctx context.Context) error {
	m, timeout := v.note.Machine, vmTimeout
	if v.restore {
		timeout = snapshotTimeout(m.MemoryBytes)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.New("the VMM does not answer"))
	defer cancel()
	vm, err := v.vm.Driver.Connect(ctx, m)
	if err != nil {
		return err
	}
	if v.restore {
		if err := v.d.spendSnapshot(m.ID); err != nil {
			return errors.Join(err, vm.Close())
		}
	}
	return v.spent(errors.Join(vm.Start(ctx), vm.Close()))
}

// bootTurnMost is several times the duration of a boot under software emulation.
const bootTurnMost = 30 * time.Second

// bootTurn waits for a place among the machines that boot. At most as many machines boot at once
// as the node has processors. The reason is software emulation: if a kernel gets too little
// processor time while it measures its clock, it may choose a clock that loses ticks, and then it
// can hang forever. The place is released after the time most. A machine that takes longer is
// slowed down by its own limits (processor or disk), and must not delay other machines.
func (d *Driver) bootTurn(ctx context.Context, most time.Duration) (release func(), err error) {
	select {
	case d.boots <- struct{}{}:
		giveBack := sync.OnceFunc(func() { <-d.boots })
		timer := time.AfterFunc(most, giveBack)
		return func() {
			timer.Stop()
			giveBack()
		}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// vmmThreads bounds the threads of a VMM: those of its devices and of 32 processors.
const vmmThreads = 512

// describe collects the parts of the machine: its disks and its network device.
func (v *vmBuild) describe(ctx context.Context) error {
	d, uid, t := v.d, v.in.UID, v.in.Template
	size := sizeOf(t)
	if err := v.useDisk(ctx); err != nil {
		return err
	}
	user := userOfInstance(v.shim.PID())
	v.note.Machine = vmm.Machine{
		ID: uid, Dir: d.vmDir(uid), Kernel: v.vm.Kernel, Initramfs: v.vm.Initramfs, CommandLine: guest.CommandLine,
		VCPUs: size.vcpus, MemoryBytes: size.memory, UID: user, GID: user,
	}
	if v.restore {
		v.note.Machine.Disks, v.note.Images, v.note.Machine.Restore = v.was.Disks, v.was.Images, d.snapshot(uid)
	} else {
		v.note.Machine.Disks, v.note.Images = disksOf(allContainers(t), v.images, d.scratch(uid), t.RateLimits)
	}
	v.note.Config = guest.Config{
		Hostname: v.hostname(), Scratch: scratchDisk,
		Hosts: readOr(d.podFile(uid, "hosts"), ""), Resolv: readOr(d.podFile(uid, "resolv.conf"), ""),
	}
	if v.attachment == nil {
		return nil
	}
	wire := tap.Wire{PID: v.shim.PID(), Interface: "eth0", UID: user, GID: user}
	if l := t.RateLimits; l != nil {
		wire.ReceiveBytesPerSecond, wire.TransmitBytesPerSecond = l.NetworkReceiveBytesPerSecond, l.NetworkTransmitBytesPerSecond
	}
	link, err := tap.Join(wire)
	if err != nil {
		return err
	}
	v.note.Machine.NICs = []vmm.NIC{{TAP: tap.Device, MAC: link.MAC.String(), MTU: link.MTU}}
	v.note.Config.Interfaces = []guest.Interface{{
		MAC: link.MAC.String(), Address: v.attachment.Address, Gateway: v.attachment.Gateway, MTU: link.MTU,
	}}
	return nil
}

// endSeenAfter is how long to wait for a VMM's end after an operation on the VMM has failed.
const endSeenAfter = time.Second

// errVMMEnded means that the VMM ended during an operation on it.
var errVMMEnded = errors.New("the VMM ended")

// alive runs work that depends on the VMM, and cancels it when the VMM ends. No other process
// runs under the supervisor during that time.
func (v *vmBuild) alive(ctx context.Context, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-done:
		case e, ok := <-v.shim.Exits():
			if !ok {
				cancel(shim.ErrGone)
				return
			}
			cancel(fmt.Errorf("%w with %d: %s", errVMMEnded, e.ExitCode, v.console()))
		}
	}()
	err := work(ctx)
	if err != nil {
		select { // the VMM's end explains more, and may be seen later
		case <-ctx.Done():
		case <-time.After(endSeenAfter):
		}
	}
	close(done)
	<-watched
	cause := context.Cause(ctx)
	if err == nil || cause == nil {
		return err
	}
	if _, spent := errors.AsType[*snapshotError](err); spent {
		return &snapshotError{cause} // the VMM's end or its effect
	}
	return cause
}

// consoleLines is how many lines of the console an error quotes.
const consoleLines = 5

// console returns the last output of the VMM and the guest's kernel.
func (v *vmBuild) console() string {
	var text bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := logfile.Read(ctx, v.d.logDir(v.in.UID, vmmContainer), logfile.Options{Tail: consoleLines}, &text); err != nil {
		return err.Error()
	}
	return strings.ToValidUTF8(strings.TrimSpace(text.String()), "?")
}

// guestTimeout bounds the boot of a guest. It is long, because a boot under software emulation on
// a loaded machine takes many seconds.
const guestTimeout = 3 * time.Minute

// bootsAtMost is how often a machine is booted until its guest is ready. The guest init ends its
// machine if the kernel started in an unusable state. That happens to emulated machines on a busy
// node. It is no failure of the instance, so the restart policy does not apply.
const bootsAtMost = 5

// guest connects to the guest init and configures it.
func (v *vmBuild) guest(ctx context.Context) error {
	err := v.meet(ctx)
	for boots := 1; v.mayBootAgain(err) && boots < bootsAtMost && ctx.Err() == nil; boots++ {
		if err = v.bootAgain(ctx, err); err == nil {
			err = v.meet(ctx)
		}
	}
	if err != nil {
		return err
	}
	return writeJSON(v.d.vmFile(v.in.UID), v.note)
}

func (v *vmBuild) meet(ctx context.Context) error {
	return v.alive(ctx, func(ctx context.Context) (err error) {
		if err := v.link(ctx); err != nil {
			return err
		}
		config := v.note.Config
		if config.Volumes, err = v.guestVolumes(ctx); err != nil {
			return err
		}
		if config.Entropy, err = entropy(); err != nil {
			return err
		}
		config.Time = time.Now()
		return v.d.guest(v.in.UID).Configure(ctx, config)
	})
}

// link waits for the guest init.
func (v *vmBuild) link(ctx context.Context) error {
	err := v.shim.Link(ctx, shim.Link{
		Channel: v.vm.Driver.Channel(v.note.Machine), Socket: v.d.guestSocket(v.in.UID), TimeoutMillis: guestTimeout.Milliseconds(),
	})
	if err != nil {
		return fmt.Errorf("%w%s; its console ends with: %s", err, slowBy(sizeOf(v.in.Template)), v.console())
	}
	return nil
}

// slowMilliCPU is the CPU limit, in thousandths of a processor, below which the limit is the
// likely reason for a boot timeout.
const slowMilliCPU = 200

// slowBy names the CPU limit if it makes a boot slow.
func slowBy(size vmSize) string {
	if size.milliCPU == 0 || size.milliCPU >= slowMilliCPU {
		return ""
	}
	return fmt.Sprintf(" (its cpu limit of %dm makes its boot slow)", size.milliCPU)
}

// entropyBytes is enough for a seed of the kernel's random number generator and a reserve.
const entropyBytes = 64

func entropy() ([]byte, error) {
	b := make([]byte, entropyBytes)
	_, err := rand.Read(b)
	return b, err
}

func (v *vmBuild) guestVolumes(ctx context.Context) ([]guest.Volume, error) {
	var list []guest.Volume
	for _, volume := range v.in.Template.Volumes {
		g := guest.Volume{Name: volume.Name}
		var err error
		switch {
		case volume.EmptyDir != nil:
			g.Memory, g.SizeBytes = volume.EmptyDir.InMemory, volume.EmptyDir.SizeLimitBytes
		case volume.ConfigMap != nil || volume.Secret != nil:
			g, err = v.projected(ctx, volume)
		default:
			err = &configError{errors.New("has no source that a microVM can mount")}
		}
		if err != nil {
			return nil, fmt.Errorf("volume %q: %w", volume.Name, err)
		}
		list = append(list, g)
	}
	return list, nil
}

// projected returns a ConfigMap or Secret in the form that a guest receives.
func (b *build) projected(ctx context.Context, v rikv1alpha1.Volume) (guest.Volume, error) {
	files, mode, err := b.objectFiles(ctx, v)
	g := guest.Volume{Name: v.Name, Memory: true, Projected: true}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		g.Files = append(g.Files, guest.File{Path: path, Mode: uint32(mode), Data: files[path]})
	}
	return g, err
}

// removeMachine removes what the machine has on the node, except its writable disk, which stays
// until the instance is deleted. The machine's process ends with the instance's cgroup.
func (v *vmBuild) removeMachine(ctx context.Context) error {
	d, uid := v.d, v.in.UID
	if err := v.clear(ctx); err != nil {
		return err
	}
	if !v.keep {
		if err := d.removeSnapshot(uid); err != nil {
			return err
		}
	}
	return removeFiles(d.vmFile(uid), d.guestSocket(uid))
}

// clear removes what a VMM that has ended left on the node.
func (v *vmBuild) clear(ctx context.Context) error {
	d, uid := v.d, v.in.UID
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := d.cgroups.Destroy(ctx, d.cgroup(uid)+"/"+vmmContainer); err != nil {
		return err
	}
	if err := v.vm.Driver.Cleanup(ctx, vmm.Machine{ID: uid, Dir: d.vmDir(uid)}); err != nil {
		return err
	}
	return d.removeVMDir(uid)
}

// vmFill is a fill in the guest of its instance.
type vmFill struct {
	*fill
	root vmImage
	vm   vmNote
}

// recall finds the container's disk. The machine has had it since its start.
func (f *vmFill) recall(context.Context) (err error) {
	if f.vm, err = f.d.vmNote(f.in.UID); err != nil {
		return err
	}
	f.root = f.vm.Images[f.c.Name]
	f.note = imageNote{Digest: f.root.Digest, StopSignal: f.root.Config.StopSignal}
	_, err = stopSignal(f.note.StopSignal)
	return err
}

func (f *vmFill) bundle(context.Context) error {
	_, err := f.makeBundle()
	return err
}

func (f *vmFill) start(ctx context.Context) error {
	env, err := f.d.environment(ctx, f.in, f.address, f.c)
	if err != nil {
		return err
	}
	p, err := guestProcess(f.in.Template, f.c, f.root, env, f.vm.Config.Hostname, f.d.pids())
	if err != nil {
		return err
	}
	err = f.fill.start(ctx, shim.Start{Guest: &p})
	if err != nil {
		f.endIfStill(ctx, f.d.cfg.HealthTimeout)
	}
	return err
}
