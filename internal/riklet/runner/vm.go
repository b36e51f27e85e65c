package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/disk"
	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/vmm"
)

// VM configures how a node runs microVMs.
type VM struct {
	Driver vmm.Driver
	Disks  disk.Store
	// Kernel and Initramfs are paths of files that every user may read.
	Kernel, Initramfs string
}

// vmmContainer is the supervisor's name for the VMM process. It cannot clash with a container,
// because container names have no underscore.
const vmmContainer = "_vmm"

// vmEngine runs an instance's containers in a virtual machine. All containers share one VM. Each
// image has one disk, and one writable disk is below all root file systems.
type vmEngine struct{ d *Driver }

// errNoMicroVMs is returned on a node that does not run microVMs. Such a node may still have
// microVMs from an earlier configuration.
var errNoMicroVMs = errors.New("this node does not run microVMs: start its riklet without --vmm=none")

func (e vmEngine) validate(t rikv1alpha1.InstanceTemplate) error {
	if e.d.cfg.VM == nil {
		return errNoMicroVMs
	}
	return validateVM(t)
}

// before returns the step for what outlives a machine: a machine that is replaced keeps its
// disks.
func (e vmEngine) before(b *build) []lifecycle.Step {
	if e.d.cfg.VM == nil {
		return nil
	}
	return []lifecycle.Step{{Name: "disks", Undo: func(context.Context) error { return e.d.cfg.VM.Disks.Release(b.in.UID) }}}
}

func (e vmEngine) after(b *build) []lifecycle.Step {
	if e.d.cfg.VM == nil { // this node may have run microVMs before
		return []lifecycle.Step{{Name: "machine", Undo: func(context.Context) error { return e.d.removeVMDir(b.in.UID) }}}
	}
	v := &vmBuild{build: b, vm: e.d.cfg.VM}
	if b.restore {
		return []lifecycle.Step{
			{Name: stepImage, Do: v.recallSnapshot},
			{Name: "machine", Do: v.machine, Undo: v.removeMachine},
			{Name: "guest", Do: v.rejoin},
		}
	}
	return []lifecycle.Step{
		{Name: stepImage, Do: v.fetch},
		{Name: "machine", Do: v.machine, Undo: v.removeMachine},
		{Name: "guest", Do: v.guest},
	}
}

func (e vmEngine) container(f *fill) []lifecycle.Step {
	v := &vmFill{fill: f}
	return []lifecycle.Step{
		{Name: stepImage, Do: v.recall},
		{Name: stepBundle, Do: v.bundle, Undo: f.removeBundle},
		{Name: stepStart, Do: v.start},
	}
}

// traces lists the instances that have a VMM directory or a disk.
func (e vmEngine) traces() ([]string, error) {
	if e.d.cfg.VM == nil {
		return nil, nil
	}
	users, err := e.d.cfg.VM.Disks.Users()
	if entries, readErr := os.ReadDir(e.d.vmDir("")); readErr == nil {
		for _, entry := range entries {
			users = append(users, entry.Name())
		}
	}
	var ids []string
	for _, uid := range users {
		ids = append(ids, containerID(uid, rikv1alpha1.FunctionContainer))
	}
	return ids, err
}

func (vmEngine) signal(ctx context.Context, client *shim.Client, _ instance.Instance, container string, s syscall.Signal) error {
	return client.Signal(ctx, container, s)
}

// whole reports whether a supervisor that was found still has a running VMM.
func (e vmEngine) whole(uid string, seen []shim.Container) bool {
	if _, err := e.d.vmNote(uid); err != nil {
		return false
	}
	for _, c := range seen {
		if c.Name == vmmContainer {
			return !c.Exited
		}
	}
	return false
}

// guest returns a client for the instance's guest. The guest may be unreachable.
func (d *Driver) guest(uid string) guest.Guest {
	return guest.New(shim.GuestOpener(d.guestSocket(uid)))
}

func (e vmEngine) dial(ctx context.Context, m *machine, port int32) (net.Conn, error) {
	if _, ok := m.namespaces(); !ok {
		return nil, instance.ErrNotRunning
	}
	return e.d.guest(m.uid).Dial(ctx, port)
}

func (e vmEngine) refresh(ctx context.Context, b *build, volumes []rikv1alpha1.Volume) error {
	var errs []error
	for _, v := range volumes {
		projected, err := b.projected(ctx, v)
		if err == nil {
			err = e.d.guest(b.in.UID).Files(ctx, projected)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (e vmEngine) exec(ctx context.Context, m *machine, name string, o instance.ExecOptions) (int, error) {
	process := guest.Process{Container: name, Exec: true, Argv: o.Command, TTY: o.TTY}
	if o.TTY {
		process.Env = []string{defaultTerm} // the container's TERM wins
	}
	running, err := e.d.guest(m.uid).Run(ctx, process, guest.Streams{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr})
	if code, never := neverRanInside(err); never {
		if o.Stderr != nil {
			fmt.Fprintln(o.Stderr, err)
		}
		return code, nil
	}
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.Resize != nil {
		go resizeGuest(ctx, running, o.Resize)
	}
	exit, err := running.Wait()
	return exit.Code, err
}

func neverRanInside(err error) (code int, never bool) {
	switch {
	case errors.Is(err, guest.ErrNoProgram):
		return codeNotFound, true
	case errors.Is(err, guest.ErrNotRunnable):
		return codeNotRunnable, true
	default:
		return 0, false
	}
}

func resizeGuest(ctx context.Context, running guest.Running, sizes <-chan instance.Size) {
	for {
		select {
		case <-ctx.Done():
			return
		case s, ok := <-sizes:
			if !ok || running.Resize(ctx, guest.Size{Width: s.Width, Height: s.Height}) != nil {
				return
			}
		}
	}
}

// vmTimeout bounds VMM operations that should finish at once.
const vmTimeout = 30 * time.Second

// hold pauses or resumes the machine. After a resume, it sends the guest its identity and the
// time.
func (e vmEngine) hold(ctx context.Context, m *machine, _ []string, held bool) error {
	if e.d.cfg.VM == nil {
		return errNoMicroVMs
	}
	note, err := e.d.vmNote(m.uid)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, vmTimeout)
	defer cancel()
	vm, err := e.d.cfg.VM.Driver.Connect(ctx, note.Machine)
	if err != nil {
		return err
	}
	defer vm.Close()
	if held {
		return vm.Pause(ctx)
	}
	if err := vm.Resume(ctx); err != nil {
		return err
	}
	// From now on the disks change, so a snapshot that may have been begun no longer matches
	// them.
	if err := e.d.removeSnapshot(m.uid); err != nil {
		return err
	}
	identity, err := note.identity()
	if err == nil {
		err = e.d.guest(m.uid).Thaw(ctx, identity)
	}
	return err
}

// vmDir is the directory of one VMM. It contains sockets, whose paths must be short, and no files
// of other instances.
func (d *Driver) vmDir(uid string) string { return filepath.Join(MachineDir(d.cfg.Run), uid) }

// removeVMDir removes the directory of a VMM that has ended.
func (d *Driver) removeVMDir(uid string) error {
	return mounts.UnmountAndRemove(d.vmDir(uid))
}

// guestSocket is the socket on which the supervisor serves the guest's channel.
func (d *Driver) guestSocket(uid string) string { return filepath.Join(d.runDir(uid), "guest.sock") }

func (d *Driver) scratch(uid string) string { return filepath.Join(d.rootDir(uid), "scratch.img") }

func (d *Driver) vmFile(uid string) string { return filepath.Join(d.runDir(uid), "vm.json") }

// vmNote is what a later riklet process must know about a running machine.
type vmNote struct {
	Machine vmm.Machine
	Config  guest.Config       // without its files and entropy
	Images  map[string]vmImage // by container
	// DiskID identifies the writable disk. DiskWhy is the reason why that disk was created.
	DiskID, DiskWhy string
}

// vmImage is the root file system of a container.
type vmImage struct {
	Digest string
	Config disk.ImageConfig
	Disk   guest.Disk
}

func (d *Driver) vmNote(uid string) (vmNote, error) {
	var note vmNote
	err := readJSON(d.vmFile(uid), &note)
	if err != nil {
		err = fmt.Errorf("%w: %w", instance.ErrNotRunning, err)
	}
	return note, err
}

// vmEnded handles the end of the VMM. Everything in the guest ended with it.
func (m *machine) vmEnded(e shim.Container) {
	if m.rec.Stop != nil || m.rec.Final != nil || !m.prepared {
		return
	}
	why := "the microVM ended"
	if m.d.cgroups.OOMKills(m.d.cgroup(m.uid)+"/"+vmmContainer) > 0 {
		why = "the VMM used more memory than its bound"
	}
	m.log.Warn("the VMM is gone; the microVM is made anew", "code", e.ExitCode, "why", why)
	m.hangUp()
	m.loseSandbox(reasonVMEnded, why)
}
