// Package microvm is the engine for Functions, and for Pods with the isolation MicroVM: it runs all
// containers of an instance in one virtual machine.
//
// It owns the disks, the VMM and the snapshots of machines, and the conversation with the guest
// init. Its main types are machines, which is the engine, sandbox, which is one creation of a
// machine, and attempt, which is one start of a container in a guest.
package microvm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/disk"
	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/vmm"
)

// Config configures how a node runs microVMs. All fields are required.
type Config struct {
	Driver vmm.Driver
	Disks  disk.Store
	// Kernel and Initramfs are paths of files that every user may read.
	Kernel, Initramfs string
}

// Images is the part of the node's image store that the engine uses. *image.Store implements it.
type Images interface {
	Pull(ctx context.Context, request image.PullRequest) (*image.Image, error)
}

// machines is the engine. All containers of an instance share one machine. Each image has one disk,
// and one writable disk is below all root file systems.
type machines struct {
	host   engine.Host
	images Images
	vm     *Config       // nil: the node runs no microVMs
	boots  chan struct{} // limits how many microVMs boot at the same time
}

// New returns the engine. If vm is nil, the node runs no microVMs.
func New(host engine.Host, images Images, vm *Config) *engine.Engine {
	e := &machines{host: host, images: images, vm: vm, boots: make(chan struct{}, runtime.NumCPU())}
	return &engine.Engine{
		Runs:    func(t rikv1alpha1.InstanceTemplate) bool { return t.Kind != rikv1alpha1.KindApp && t.Virtual() },
		Builder: e, Sessions: e, Snapshots: e, Health: e,
		Permanent: []error{
			image.ErrInvalidReference, image.ErrRefused, image.ErrTooLarge, image.ErrDigest, image.ErrPlatform, image.ErrUnsupported,
			disk.ErrRefused, disk.ErrTooLarge, disk.ErrDigest, vmm.ErrInvalid,
		},
	}
}

// ErrNone is returned on a node that does not run microVMs. Such a node may still have
// microVMs from an earlier configuration.
var ErrNone = errors.New("this node does not run microVMs: start its riklet without --vmm=none")

func (e *machines) Validate(t rikv1alpha1.InstanceTemplate) error {
	if e.vm == nil {
		return ErrNone
	}
	return validateVM(t)
}

// Prepare returns the step for what outlives a machine, because a machine that is replaced keeps
// its disks, and the steps that start the machine.
func (e *machines) Prepare(s *engine.Sandbox) engine.Preparation {
	if e.vm == nil { // this node may have run microVMs before
		return engine.Preparation{Sandbox: []lifecycle.Step{
			{Name: "machine", Undo: func(context.Context) error { return e.removeVMDir(s.Instance.UID) }},
		}}
	}
	v := &sandbox{Sandbox: s, e: e, node: e.host.Node(), dirs: e.paths()}
	p := engine.Preparation{Storage: lifecycle.Step{
		Name: "disks", Undo: func(context.Context) error { return e.vm.Disks.Release(s.Instance.UID) },
	}}
	machine := lifecycle.Step{Name: "machine", Do: v.machine, Undo: v.removeMachine}
	if s.Restore {
		p.Sandbox = []lifecycle.Step{{Name: "image", Do: v.readSnapshotNote}, machine, {Name: "guest", Do: v.reconnectGuest}}
	} else {
		p.Sandbox = []lifecycle.Step{{Name: "image", Do: v.fetch}, machine, {Name: "guest", Do: v.guest}}
	}
	return p
}

func (e *machines) Container(a *engine.Attempt) engine.Steps {
	v := &attempt{Attempt: a, e: e}
	return engine.Steps{
		Image:  lifecycle.Step{Do: v.findDisk},
		Bundle: lifecycle.Step{Do: v.bundle, Undo: a.RemoveBundle},
		Start:  lifecycle.Step{Do: v.start},
	}
}

// Traces lists the instances that have a VMM directory or a disk.
func (e *machines) Traces() ([]string, error) {
	if e.vm == nil {
		return nil, nil
	}
	users, err := e.vm.Disks.Users()
	if entries, readErr := os.ReadDir(e.paths().vmDir("")); readErr == nil {
		for _, entry := range entries {
			users = append(users, entry.Name())
		}
	}
	var ids []string
	for _, uid := range users {
		ids = append(ids, engine.ContainerID(uid, rikv1alpha1.FunctionContainer))
	}
	return ids, err
}

func (*machines) Signal(ctx context.Context, client *shim.Client, _ instance.Instance, container string, s syscall.Signal) error {
	return client.Signal(ctx, container, s)
}

// Find checks whether a supervisor that was found still has a running VMM.
func (e *machines) Find(uid string, seen []shim.Container) engine.Found {
	note, err := e.note(uid)
	if err != nil {
		return engine.Found{}
	}
	at := slices.IndexFunc(seen, func(c shim.Container) bool { return c.Name == engine.VMM })
	return engine.Found{Whole: at >= 0 && !seen[at].Exited, Disk: note.DiskID, DiskWhy: note.DiskWhy}
}

// guest returns a client for the instance's guest. The guest may be unreachable.
func (e *machines) guest(uid string) guest.Guest {
	return guest.New(shim.GuestOpener(GuestSocket(e.host.Node().Paths, uid)))
}

func (e *machines) Dial(ctx context.Context, r engine.Running, port int32) (net.Conn, error) {
	if r.PID == 0 {
		return nil, instance.ErrNotRunning
	}
	return e.guest(r.Instance.UID).Dial(ctx, port)
}

func (e *machines) Refresh(ctx context.Context, in instance.Instance, volumes []rikv1alpha1.Volume) error {
	var errs []error
	for _, v := range volumes {
		projected, err := e.projected(ctx, in, v)
		if err == nil {
			err = e.guest(in.UID).Files(ctx, projected)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (*machines) EndLeftoverCommands(string, []string) {} // the guest ends commands with their connection

// vmTimeout bounds VMM operations that should finish at once.
const vmTimeout = 30 * time.Second

// Hold pauses or resumes the machine. After a resume, it sends the guest its identity and the
// time.
func (e *machines) Hold(ctx context.Context, in instance.Instance, _ []string, held bool) error {
	if e.vm == nil {
		return ErrNone
	}
	note, err := e.note(in.UID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, vmTimeout)
	defer cancel()
	vm, err := e.vm.Driver.Connect(ctx, note.Machine)
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
	if err := e.paths().removeSnapshot(in.UID); err != nil {
		return err
	}
	identity, err := note.identity()
	if err == nil {
		err = e.guest(in.UID).Thaw(ctx, identity)
	}
	return err
}

// paths are the places of the files that only microVMs have.
type paths struct{ engine.Paths }

func (e *machines) paths() paths { return paths{e.host.Node().Paths} }

// vmDir is the directory of one VMM. It contains sockets, whose paths must be short, and no files
// of other instances.
func (p paths) vmDir(uid string) string { return filepath.Join(Dir(p.Run), uid) }

// GuestSocket returns the socket on which an instance's supervisor serves the guest's channel.
func GuestSocket(p engine.Paths, uid string) string {
	return filepath.Join(p.RunDir(uid), "guest.sock")
}

func (p paths) scratch(uid string) string { return filepath.Join(p.RootDir(uid), "scratch.img") }

func (p paths) vmFile(uid string) string { return filepath.Join(p.RunDir(uid), "vm.json") }

// RunDirectory is the directory in Paths.Run for microVMs.
const RunDirectory = "vm"

// Dir returns the directory for microVMs in Paths.Run.
func Dir(run string) string { return filepath.Join(run, RunDirectory) }

// removeVMDir removes the directory of a VMM that has ended.
func (e *machines) removeVMDir(uid string) error {
	return mounts.UnmountAndRemove(e.paths().vmDir(uid))
}

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

func (e *machines) note(uid string) (vmNote, error) {
	var note vmNote
	err := engine.ReadJSON(e.paths().vmFile(uid), &note)
	if err != nil {
		err = fmt.Errorf("%w: %w", instance.ErrNotRunning, err)
	}
	return note, err
}
