// Package qemu runs microVMs with QEMU, controlled through QMP. The machine is "microvm" on amd64,
// and "virt" on arm64.
//
// Both machines have PCI. With it, a distribution's kernel boots faster than with virtio-mmio, and
// the machine has room for more devices and can be written to disk and restored. QEMU runs as the machine's own user with its seccomp sandbox, in the directory "vmm"
// of the machine. That has its sockets and its files under fixed names, so its command line
// contains no path of the node.
//
// Probe decides on KVM by booting a guest, not by the existence of /dev/kvm: on some hypervisors
// the device can be opened but runs no guest.
package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/internal/stage"
)

// The accelerators of a Config.
const (
	KVM = "kvm"
	TCG = "tcg"
)

// Config configures the driver.
type Config struct {
	// Binary is a path or a name on the PATH; empty means the one of the architecture.
	Binary string
	// Architecture of the guests is a GOARCH value; empty means this machine's. Guests of another
	// architecture run in software emulation.
	Architecture string
	// Kernel and Initramfs are the files that Probe boots.
	Kernel, Initramfs string
	// StateDir is where Probe saves its result. If empty, each agent probes again.
	StateDir string
	// ProbeDir is where Probe creates its machine's directory: next to those of other machines.
	// If empty, it is the system's directory for temporary files.
	ProbeDir string
	// Accelerator is KVM or TCG to allow only that one. If empty, KVM is used if it works.
	Accelerator string
	Logger      *slog.Logger
}

// Driver is the vmm.Driver for QEMU.
type Driver struct {
	config Config

	mu    sync.Mutex // held while probing: a second caller waits for the result of the first
	found *found
	// refused is the error of the last probe. It is returned until refusedUntil.
	refused      error
	refusedUntil time.Time
}

var _ vmm.Driver = (*Driver)(nil)

// New returns a driver. It does not search or run any program yet.
func New(c Config) (*Driver, error) {
	c.Architecture = cmp.Or(c.Architecture, runtime.GOARCH)
	c.Binary = cmp.Or(c.Binary, platforms[known(c.Architecture)].program)
	if c.Accelerator != "" && c.Accelerator != KVM && c.Accelerator != TCG {
		return nil, fmt.Errorf("the accelerator %q is not %q or %q", c.Accelerator, KVM, TCG)
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Driver{config: c}, nil
}

// Name returns "qemu".
func (d *Driver) Name() string { return "qemu" }

// Validate reports every problem of a machine.
func (d *Driver) Validate(m vmm.Machine) error {
	err := m.Validate()
	if m.Restore != "" && err == nil {
		err = validateSnapshot(m)
	}
	return err
}

// Names of files in a machine's directory.
const (
	ownDir      = "vmm" // the VMM's directory, which contains the following
	qmpSocket   = "qmp"
	guestSocket = "guest"
	kernelFile  = "kernel"
	initrdFile  = "initramfs"
	diskPrefix  = "disk-"
)

func directory(m vmm.Machine) string { return filepath.Join(m.Dir, ownDir) }

// Channel returns the virtio-serial port's socket.
func (d *Driver) Channel(m vmm.Machine) guest.Channel {
	return guest.Channel{Socket: filepath.Join(directory(m), guestSocket)}
}

// Prepare creates the VMM's directory and returns the QEMU process.
func (d *Driver) Prepare(ctx context.Context, m vmm.Machine) (launch.Process, error) {
	if err := d.Validate(m); err != nil {
		return launch.Process{}, err
	}
	found, err := d.probe(ctx)
	if err != nil {
		return launch.Process{}, err
	}
	if m.Restore != "" {
		if err := found.validateOrigin(m); err != nil {
			return launch.Process{}, err
		}
	}
	return d.prepare(m, found)
}

func (d *Driver) prepare(m vmm.Machine, f *found) (launch.Process, error) {
	if err := d.stage(m); err != nil {
		return launch.Process{}, errors.Join(err, remove(m))
	}
	if len(m.NICs) > 0 {
		if err := openTUN(m.UID, d.config.Logger); err != nil {
			return launch.Process{}, errors.Join(err, remove(m))
		}
	}
	return launch.Process{
		Argv: append([]string{f.Binary}, arguments(m, f)...),
		Env:  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C", "HOME=/", "TMPDIR=."},
		Dir:  directory(m),
		// The VMM has no access to the directories above.
		Enclosed: true,
		UID:      m.UID,
		GID:      m.GID,
		Groups:   f.groups(m),
		Cgroups:  m.Cgroups,
		// Each disk uses one, each socket two, and QEMU itself about thirty.
		OpenFiles: 1024,
	}, nil
}

// stage puts the machine's files into the VMM's directory.
func (d *Driver) stage(m vmm.Machine) error {
	owner := stage.Owner{UID: m.UID, GID: m.GID}
	dir := directory(m)
	if err := remove(m); err != nil {
		return err
	}
	if err := stage.Directory(dir, owner); err != nil {
		return err
	}
	if err := stage.ReadOnly(m.Kernel, filepath.Join(dir, kernelFile), owner); err != nil {
		return fmt.Errorf("the kernel: %w", err)
	}
	if m.Initramfs != "" {
		if err := stage.ReadOnly(m.Initramfs, filepath.Join(dir, initrdFile), owner); err != nil {
			return fmt.Errorf("the initramfs: %w", err)
		}
	}
	for _, disk := range m.Disks {
		put := stage.Writable
		if disk.ReadOnly {
			put = stage.ReadOnly
		}
		if err := put(disk.Path, filepath.Join(dir, diskPrefix+disk.ID), owner); err != nil {
			return fmt.Errorf("disk %q: %w", disk.ID, err)
		}
	}
	return nil
}

// Cleanup removes the VMM's directory.
func (d *Driver) Cleanup(_ context.Context, m vmm.Machine) error {
	if m.Dir == "" || !filepath.IsAbs(m.Dir) {
		return fmt.Errorf("%w: the directory %q is not absolute", vmm.ErrInvalid, m.Dir)
	}
	return remove(m)
}

// remove removes the files of a machine, if there are any.
func remove(m vmm.Machine) error {
	err := os.Remove(filepath.Join(m.Dir, startedFile))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, stage.Remove(directory(m)))
}

// openTUN allows the VMM's user to open the device of all TAPs. On any system with udev its mode
// is 0666. Opening it gives no access: attaching to a TAP requires its ownership, and creating
// one requires CAP_NET_ADMIN (Documentation/networking/tuntap.rst).
func openTUN(uid uint32, logger *slog.Logger) error {
	const device, all = "/dev/net/tun", 0o666
	info, err := os.Stat(device)
	if err != nil {
		return fmt.Errorf("%w: %w: load the kernel module tun", vmm.ErrUnavailable, err)
	}
	if info.Mode().Perm()&0o006 == 0o006 || int(uid) == os.Geteuid() {
		return nil
	}
	if err := os.Chmod(device, all); err != nil {
		return fmt.Errorf("%w: user %d cannot open %s: give it mode 0666, as udev does: %w", vmm.ErrUnavailable, uid, device, err)
	}
	logger.Info("set the mode of a device to the mode that udev sets", "device", device, "mode", "0666")
	return nil
}
