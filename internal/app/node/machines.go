package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/archive"
	"rik.dev/rik/internal/riklet/disk"
	"rik.dev/rik/internal/riklet/fetch"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/runner/microvm"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/firecracker"
	"rik.dev/rik/internal/riklet/vmm/qemu"
	"rik.dev/rik/internal/riklet/vmm/selector"
)

// guestDir is the directory next to the program with the kernel and initramfs that make builds.
const guestDir = "guest"

// findGuest looks next to this program for the files that no flag names.
func (o *Options) findGuest() []error {
	if o.VMM == VMMNone {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return []error{err}
	}
	var problems []error
	for _, f := range []struct {
		path       *string
		name, flag string
	}{{&o.Kernel, "kernel", "--kernel"}, {&o.Initramfs, "initramfs", "--initramfs"}} {
		// A server validates the options twice; the second time, the default is already set.
		if beside := filepath.Join(filepath.Dir(self), guestDir, f.name); *f.path == "" || *f.path == beside {
			*f.path = beside
			continue // a node without it reports that it runs no microVMs
		}
		absolute, err := filepath.Abs(*f.path)
		if err == nil {
			_, err = os.Stat(absolute)
		}
		if err != nil {
			problems = append(problems, usagef("%s %q: %w", f.flag, *f.path, err))
		}
		*f.path = absolute
	}
	return problems
}

// fetchNetworks parses --allow-fetch.
func (o *Options) fetchNetworks() ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, text := range o.AllowFetch {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, usagef("--allow-fetch %q is not a network such as 10.0.0.0/8", text)
		}
		list = append(list, network)
	}
	return list, nil
}

// stores holds the caches of the files that instances are made of.
type stores struct {
	images   *image.Store
	disks    *disk.Dir // nil: no microVMs
	archives *archive.Dir
}

func (o *Options) openStores(log *slog.Logger) (*stores, error) {
	s := &stores{}
	var err error
	if s.images, err = o.openImages(log); err != nil {
		return nil, err
	}
	networks, _ := o.fetchNetworks() // Validate has checked them
	limits, _ := o.fetchLimits()
	private := []string{o.StateDir, o.RunDir}
	if o.VMM != VMMNone {
		s.disks, err = disk.New(disk.Config{
			Root: filepath.Join(o.StateDir, "disks"), Images: s.images, Unpacker: []string{o.Unpacker},
			AllowHTTP: o.AllowHTTP, AllowNetworks: networks, AllowPath: true, Private: private, Limits: limits, Logger: log,
		})
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	s.archives, err = archive.New(archive.Config{
		Root: filepath.Join(o.StateDir, "apps"), Unpacker: []string{o.Unpacker},
		AllowHTTP: o.AllowHTTP, AllowNetworks: networks, Private: private, Logger: log,
		// An App is a program with its files, so the limits for the sizes of images do not
		// apply.
		Limits: fetch.Limits{Time: limits.Time, Stall: limits.Stall},
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close closes the stores that are open.
func (s *stores) Close() error {
	var errs []error
	if s.archives != nil {
		errs = append(errs, s.archives.Close())
	}
	if s.disks != nil {
		errs = append(errs, s.disks.Close())
	}
	return errors.Join(append(errs, s.images.Close())...)
}

// newVM returns what runs microVMs, or nil if the node shall run none. A later probe checks
// whether they work.
func (o *Options) newVM(s *stores, log *slog.Logger) (*microvm.Config, error) {
	if s.disks == nil {
		return nil, nil
	}
	var drivers []vmm.Driver
	if o.VMM != VMMQEMU {
		if err := o.makeJailDir(); err != nil {
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
	return &microvm.Config{Driver: selector.Of(drivers...), Disks: s.disks, Kernel: o.Kernel, Initramfs: o.Initramfs}, nil
}

// jailsDir is the default directory for Firecracker's jails, in the state directory. It is on
// the same disk as the disks of the machines. Unlike in the run directory, devices and programs
// work there.
const jailsDir = "jails"

func (o *Options) jailDir() string {
	if o.JailDir != "" {
		return o.JailDir
	}
	return filepath.Join(o.StateDir, jailsDir)
}

// makeJailDir creates the directory of jails, accessible to root only. An existing directory
// belongs to the administrator and keeps its mode.
func (o *Options) makeJailDir() error {
	if err := os.MkdirAll(o.jailDir(), 0o700); err != nil {
		return fmt.Errorf("creating the directory of Firecracker's jails (--jail-dir): %w", err)
	}
	return nil
}

// removeJailDir removes the directory of jails if it is empty.
func (o *Options) removeJailDir() error {
	for _, dir := range []string{filepath.Join(o.jailDir(), VMMFirecracker), o.jailDir()} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

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
