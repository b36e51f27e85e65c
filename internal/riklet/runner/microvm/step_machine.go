package microvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/network/tap"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/logfile"
	"rik.dev/rik/internal/riklet/vmm"
)

// machine starts the VMM, which boots the guest's kernel.
func (v *sandbox) machine(ctx context.Context) error {
	if err := v.describe(ctx); err != nil {
		return err
	}
	release, err := v.e.bootSlot(ctx, maxBootSlot)
	if err != nil {
		return err
	}
	v.AtEnd(release)
	return v.launch(ctx)
}

// launch starts the VMM of the machine in note.
func (v *sandbox) launch(ctx context.Context) error {
	m, size := v.note.Machine, sizeOf(v.Instance.Template)
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return err
	}
	procs, err := v.node.Cgroups.Create(v.node.Cgroups.Container(v.Instance.UID, engine.VMM), cgroup.Limits{
		MemoryBytes: size.memory + vmmOverhead, MilliCPU: size.milliCPU, PIDs: vmmThreads,
	})
	if err != nil {
		return err
	}
	m.Cgroups = procs
	v.note.Machine = m
	process, err := v.e.vm.Driver.Prepare(ctx, m)
	if v.Restore && errors.Is(err, vmm.ErrInvalid) {
		return &engine.SnapshotError{Err: err}
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(v.dirs.Bundle(v.Instance.UID, engine.VMM), 0o700); err != nil {
		return err
	}
	d, uid := v.dirs, v.Instance.UID
	last, _ := d.LastRun(uid, engine.VMM)
	if _, err := v.Supervisor.Start(ctx, shim.Start{
		Container: engine.VMM, Attempt: last + 1, Process: &process,
		LogDir: d.LogDir(uid, engine.VMM), LogLimits: v.node.LogLimits,
		MarkFile: d.MarkFile(uid, engine.VMM), ExitFile: d.ExitFile(uid, engine.VMM),
	}); err != nil {
		return err
	}
	return v.alive(ctx, v.startVM)
}

// startVM orders the running VMM to start or restore the machine.
func (v *sandbox) startVM(ctx context.Context) error {
	m, timeout := v.note.Machine, vmTimeout
	if v.Restore {
		timeout = snapshotTimeout(m.MemoryBytes)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.New("the VMM does not answer"))
	defer cancel()
	vm, err := v.e.vm.Driver.Connect(ctx, m)
	if err != nil {
		return err
	}
	if v.Restore {
		if err := v.dirs.useSnapshot(m.ID); err != nil {
			return errors.Join(err, vm.Close())
		}
	}
	return v.usedSnapshotError(errors.Join(vm.Start(ctx), vm.Close()))
}

// maxBootSlot is several times the duration of a boot under software emulation.
const maxBootSlot = 30 * time.Second

// bootSlot waits for a place among the machines that boot. At most as many machines boot at once as
// the node has processors. The reason is software emulation. If a kernel gets too little processor
// time while it measures its clock, it may choose a clock that loses ticks, and then it can hang
// forever. The place is released after the time most. A machine that takes longer is slowed down by
// its own limits (processor or disk), and must not delay other machines.
func (e *machines) bootSlot(ctx context.Context, most time.Duration) (release func(), err error) {
	select {
	case e.boots <- struct{}{}:
		releaseSlot := sync.OnceFunc(func() { <-e.boots })
		timer := time.AfterFunc(most, releaseSlot)
		return func() {
			timer.Stop()
			releaseSlot()
		}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// vmmThreads bounds the threads of a VMM: those of its devices and of 32 processors.
const vmmThreads = 512

// describe collects the parts of the machine: its disks and its network device.
func (v *sandbox) describe(ctx context.Context) error {
	d, uid, t := v.dirs, v.Instance.UID, v.Instance.Template
	size := sizeOf(t)
	if err := v.useDisk(ctx); err != nil {
		return err
	}
	user := engine.UserOf(v.Supervisor.PID())
	v.note.Machine = vmm.Machine{
		ID: uid, Dir: d.vmDir(uid), Kernel: v.e.vm.Kernel, Initramfs: v.e.vm.Initramfs, CommandLine: guest.CommandLine,
		VCPUs: size.vcpus, MemoryBytes: size.memory, UID: user, GID: user,
	}
	if v.Restore {
		v.note.Machine.Disks, v.note.Images, v.note.Machine.Restore = v.was.Disks, v.was.Images, d.snapshot(uid)
	} else {
		v.note.Machine.Disks, v.note.Images = disksOf(engine.Containers(t), v.images, d.scratch(uid), t.RateLimits)
	}
	v.note.Config = guest.Config{
		Hostname: engine.Hostname(v.Instance), Scratch: scratchDisk,
		Hosts: engine.ReadOr(d.PodFile(uid, "hosts"), ""), Resolv: engine.ReadOr(d.PodFile(uid, "resolv.conf"), ""),
	}
	if v.Attachment == nil {
		return nil
	}
	wire := tap.Wire{PID: v.Supervisor.PID(), Interface: "eth0", UID: user, GID: user}
	if l := t.RateLimits; l != nil {
		wire.ReceiveBytesPerSecond, wire.TransmitBytesPerSecond = l.NetworkReceiveBytesPerSecond, l.NetworkTransmitBytesPerSecond
	}
	link, err := tap.Join(wire)
	if err != nil {
		return err
	}
	v.note.Machine.NICs = []vmm.NIC{{TAP: tap.Device, MAC: link.MAC.String(), MTU: link.MTU}}
	v.note.Config.Interfaces = []guest.Interface{{
		MAC: link.MAC.String(), Address: v.Attachment.Address, Gateway: v.Attachment.Gateway, MTU: link.MTU,
	}}
	return nil
}

// endTimeout is how long to wait for a VMM's end after an operation on the VMM has failed.
const endTimeout = time.Second

// errVMMEnded means that the VMM ended during an operation on it.
var errVMMEnded = errors.New("the VMM ended")

// alive runs work that depends on the VMM, and cancels it when the VMM ends. No other process
// runs under the supervisor during that time.
func (v *sandbox) alive(ctx context.Context, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-done:
		case e, ok := <-v.Supervisor.Exits():
			if !ok {
				cancel(shim.ErrGone)
				return
			}
			cancel(fmt.Errorf("%w with %d: %s", errVMMEnded, e.ExitCode, v.console()))
		}
	}()
	err := work(ctx)
	if err != nil {
		// The VMM's end explains more, and may be seen later.
		pause.For(ctx, endTimeout)
	}
	close(done)
	<-watched
	cause := context.Cause(ctx)
	if err == nil || cause == nil {
		return err
	}
	if _, usedSnapshotError := errors.AsType[*engine.SnapshotError](err); usedSnapshotError {
		return &engine.SnapshotError{Err: cause} // the VMM's end or its effect
	}
	return cause
}

// consoleLines is how many lines of the console an error quotes.
const consoleLines = 5

// console returns the last output of the VMM and the guest's kernel.
func (v *sandbox) console() string {
	var text bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := logfile.Read(ctx, v.dirs.LogDir(v.Instance.UID, engine.VMM), logfile.Options{Tail: consoleLines}, &text); err != nil {
		return err.Error()
	}
	return strings.ToValidUTF8(strings.TrimSpace(text.String()), "?")
}

// removeMachine removes what the machine has on the node, except its writable disk, which stays
// until the instance is deleted. The machine's process ends with the instance's cgroup.
func (v *sandbox) removeMachine(ctx context.Context) error {
	d, uid := v.dirs, v.Instance.UID
	if err := v.clear(ctx); err != nil {
		return err
	}
	if !v.KeepSnapshot {
		if err := d.removeSnapshot(uid); err != nil {
			return err
		}
	}
	return removeFiles(d.vmFile(uid), GuestSocket(v.node.Paths, uid))
}

// clear removes what a VMM that has ended left on the node.
func (v *sandbox) clear(ctx context.Context) error {
	uid, cgroups := v.Instance.UID, v.node.Cgroups
	ctx, cancel := context.WithTimeout(ctx, engine.EndTimeout)
	defer cancel()
	if err := cgroups.Destroy(ctx, cgroups.Container(uid, engine.VMM)); err != nil {
		return err
	}
	if err := v.e.vm.Driver.Cleanup(ctx, vmm.Machine{ID: uid, Dir: v.dirs.vmDir(uid)}); err != nil {
		return err
	}
	return v.e.removeVMDir(uid)
}
