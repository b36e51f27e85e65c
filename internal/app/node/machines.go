package node

import (
	"context"
	"fmt"
	"log/slog"

	"rik.dev/rik/internal/riklet/caches"
	"rik.dev/rik/internal/riklet/runner/microvm"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/firecracker"
	"rik.dev/rik/internal/riklet/vmm/qemu"
	"rik.dev/rik/internal/riklet/vmm/selector"
)

// findGuest finds the files that microVMs boot.
func (o *Options) findGuest() []error {
	if o.VMM == VMMNone {
		return nil
	}
	var problems []error
	for _, f := range []struct {
		path       *string
		name, flag string
	}{{&o.Kernel, vmm.KernelFile, "--kernel"}, {&o.Initramfs, vmm.InitramfsFile, "--initramfs"}} {
		path, err := vmm.GuestFile(*f.path, f.name)
		if err != nil {
			problems = append(problems, usagef("%s %q: %w", f.flag, *f.path, err))
		}
		*f.path = path
	}
	return problems
}

func (o *Options) openCaches(log *slog.Logger) (*caches.Caches, error) {
	networks, _ := o.fetchNetworks() // Validate has checked them
	limits, _ := o.imageLimits()     // and these
	return caches.Open(caches.Config{
		StateDir: o.StateDir, RunDir: o.RunDir, ImageDir: o.ImageDir, Unpacker: o.Unpacker, MicroVMs: o.VMM != VMMNone,
		Limits: limits, AllowHTTP: o.AllowHTTP, AllowNetworks: networks,
		RegistriesDir: o.RegistriesDir, RegistriesConf: o.RegistriesConf, AuthFile: o.RegistriesAuth, CertDir: o.CertDir, Logger: log,
	})
}

// newVM returns what runs microVMs, or nil if the node shall run none. A later probe checks
// whether they work.
func (o *Options) newVM(s *caches.Caches, log *slog.Logger) (*microvm.Config, error) {
	if s.Disks == nil {
		return nil, nil
	}
	var drivers []vmm.Driver
	if o.VMM != VMMQEMU {
		if err := firecracker.MakeJailDir(o.jailDir()); err != nil {
			return nil, err
		}
		d, err := firecracker.New(firecracker.Config{
			Location: o.Firecracker, Kernel: o.Kernel, Initramfs: o.Initramfs,
			JailDir: o.jailDir(), ProbeDir: microvm.Dir(o.RunDir), Logger: log,
		})
		if err != nil {
			return nil, fmt.Errorf("firecracker: %w", err)
		}
		drivers = append(drivers, d)
	}
	if o.VMM != VMMFirecracker {
		d, err := qemu.New(qemu.Config{Binary: o.QEMU, Kernel: o.Kernel, Initramfs: o.Initramfs, StateDir: o.StateDir, ProbeDir: microvm.Dir(o.RunDir), Logger: log})
		if err != nil {
			return nil, fmt.Errorf("qemu: %w", err)
		}
		drivers = append(drivers, d)
	}
	return &microvm.Config{Driver: selector.Of(drivers...), Disks: s.Disks, Kernel: o.Kernel, Initramfs: o.Initramfs}, nil
}

func (o *Options) jailDir() string { return firecracker.JailDir(o.JailDir, o.StateDir) }

// probe returns a function that checks whether microVMs work on this machine.
func probe(vm *microvm.Config, log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		found, err := vm.Driver.Probe(ctx)
		if err == nil {
			log.Info("this node runs microVMs", "vmm", vm.Driver.Name(), "version", found.Version, "accelerator", found.Accelerator)
		}
		return err
	}
}
