package microvm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim"
)

// guestTimeout bounds the boot of a guest. It is long, because a boot under software emulation on
// a loaded machine takes many seconds.
const guestTimeout = 3 * time.Minute

// maxBoots is how often a machine is booted until its guest is ready. The guest init ends its
// machine if the kernel started in an unusable state. That happens to emulated machines on a busy
// node. It is no failure of the instance, so the restart policy does not apply.
const maxBoots = 5

// guest connects to the guest init and configures it.
func (v *sandbox) guest(ctx context.Context) error {
	err := v.connectGuest(ctx)
	for boots := 1; v.mayBootAgain(err) && boots < maxBoots && ctx.Err() == nil; boots++ {
		if err = v.bootAgain(ctx, err); err == nil {
			err = v.connectGuest(ctx)
		}
	}
	if err != nil {
		return err
	}
	return v.save()
}

func (v *sandbox) connectGuest(ctx context.Context) error {
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
		return v.e.guest(v.Instance.UID).Configure(ctx, config)
	})
}

// save writes down what a later riklet process must know about the machine.
func (v *sandbox) save() error {
	if err := engine.WriteJSON(v.dirs.vmFile(v.Instance.UID), v.note); err != nil {
		return err
	}
	v.Disk, v.DiskWhy = v.note.DiskID, v.note.DiskWhy
	return nil
}

// link waits for the guest init.
func (v *sandbox) link(ctx context.Context) error {
	err := v.Supervisor.Link(ctx, shim.Link{
		Channel: v.e.vm.Driver.Channel(v.note.Machine), Socket: GuestSocket(v.node.Paths, v.Instance.UID), TimeoutMillis: guestTimeout.Milliseconds(),
	})
	if err != nil {
		return fmt.Errorf("%w%s; its console ends with: %s", err, slowCPULimit(sizeOf(v.Instance.Template)), v.console())
	}
	return nil
}

// slowMilliCPU is the CPU limit, in thousandths of a processor, below which the limit is the
// likely reason for a boot timeout.
const slowMilliCPU = 200

// slowCPULimit names the CPU limit if it makes a boot slow.
func slowCPULimit(size vmSize) string {
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

func (v *sandbox) guestVolumes(ctx context.Context) ([]guest.Volume, error) {
	var list []guest.Volume
	for _, volume := range v.Instance.Template.Volumes {
		g := guest.Volume{Name: volume.Name}
		var err error
		switch {
		case volume.EmptyDir != nil:
			g.Memory, g.SizeBytes = volume.EmptyDir.InMemory, volume.EmptyDir.SizeLimitBytes
		case volume.ConfigMap != nil || volume.Secret != nil:
			g, err = v.e.projected(ctx, v.Instance, volume)
		default:
			err = &engine.ConfigError{Err: errors.New("has no source that a microVM can mount")}
		}
		if err != nil {
			return nil, fmt.Errorf("volume %q: %w", volume.Name, err)
		}
		list = append(list, g)
	}
	return list, nil
}

// projected returns a ConfigMap or Secret in the form that a guest receives.
func (e *machines) projected(ctx context.Context, in instance.Instance, v rikv1alpha1.Volume) (guest.Volume, error) {
	files, mode, err := e.host.Files(ctx, in, v)
	g := guest.Volume{Name: v.Name, Memory: true, Projected: true}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		g.Files = append(g.Files, guest.File{Path: path, Mode: uint32(mode), Data: files[path]})
	}
	return g, err
}

// reconnectGuest connects to the guest in its new machine, and takes over its containers.
func (v *sandbox) reconnectGuest(ctx context.Context) error {
	err := v.alive(ctx, func(ctx context.Context) error {
		if err := v.link(ctx); err != nil {
			return err
		}
		identity, err := v.note.identity()
		if err != nil {
			return err
		}
		return v.e.guest(v.Instance.UID).Thaw(ctx, identity)
	})
	if err != nil {
		return v.usedSnapshotError(err)
	}
	for i := range v.Kept {
		if err := v.registerContainer(ctx, &v.Kept[i]); err != nil {
			return v.usedSnapshotError(err)
		}
	}
	if err := v.dirs.removeSnapshot(v.Instance.UID); err != nil {
		return v.usedSnapshotError(err)
	}
	return v.save()
}

// registerContainer registers a container that already runs in the guest with the supervisor.
func (v *sandbox) registerContainer(ctx context.Context, r *engine.KeptRun) error {
	a := &engine.Attempt{
		Node: v.node, Instance: v.Instance, Container: r.Container, Index: r.Index, Number: r.Attempt, Supervisor: v.Supervisor, Note: r.Note,
	}
	if err := a.MakeBundle(); err != nil {
		return err
	}
	// The file contains how the run ended for its first supervisor, which is not the end of the
	// run.
	if err := removeFiles(v.dirs.ExitFile(v.Instance.UID, r.Container.Name)); err != nil {
		return err
	}
	err := a.Start(ctx, shim.Start{Guest: &guest.Process{Container: r.Container.Name, Kept: true, TTY: r.Container.TTY}})
	if refused, ok := errors.AsType[*shim.StartError](err); ok {
		r.Lost = "it did not survive the suspension to disk: " + refused.Error()
		return nil
	}
	return err
}
