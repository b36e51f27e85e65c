package microvm

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/disk"
	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/vmm"
)

// Pure functions that translate a template into the parts of a microVM.

// validateVM rejects fields that a microVM does not support. The API server also rejects them.
func validateVM(t rikv1alpha1.InstanceTemplate) error {
	var errs []error
	if t.HostNetwork {
		errs = append(errs, errors.New("a microVM cannot use its node's network"))
	}
	if t.Runtime != "" {
		errs = append(errs, fmt.Errorf("a microVM has no OCI runtime %q", t.Runtime))
	}
	if t.Kind == rikv1alpha1.KindFunction && t.Function == nil {
		errs = append(errs, errors.New("the template of a Function has no field function"))
	}
	for _, v := range t.Volumes {
		if v.HostPath != nil {
			errs = append(errs, fmt.Errorf("volume %q: a microVM cannot mount a path of its node", v.Name))
		}
	}
	return errors.Join(errs...)
}

const (
	// defaultVMDisk is the size of the writable disk if the template sets none.
	defaultVMDisk = 1 << 30
	// vmmOverhead bounds the memory of the VMM in addition to the guest's memory. Software
	// emulation caches translated code.
	vmmOverhead = 512 << 20
)

// vmSize is the size of a machine.
type vmSize struct {
	vcpus    int
	milliCPU int64 // CPU limit of the VMM; 0: none
	memory   int64
	disk     int64
}

// sizeOf returns the machine size that the scheduler assumed, in units that every VMM accepts.
func sizeOf(t rikv1alpha1.InstanceTemplate) vmSize {
	m := t.Machine()
	s := vmSize{vcpus: m.CPUs, memory: max(m.MemoryBytes, vmm.MinMemory) >> 20 << 20, disk: m.DiskBytes}
	s.disk = cmp.Or(s.disk, defaultVMDisk)
	s.disk = max(s.disk, disk.MinWritable)
	for _, c := range t.Processes() {
		limit := c.Resources.Limits.MilliCPU()
		if limit == 0 {
			s.milliCPU = 0
			break
		}
		s.milliCPU += limit
	}
	return s
}

// scratchDisk is the ID of the writable disk, which is the first disk.
const scratchDisk = "scratch"

// disksOf returns the machine's disks and, for each container, the disk of its root file system.
// Containers with the same image share a disk.
func disksOf(containers []rikv1alpha1.Container, images map[string]*disk.Image, scratch string, limits *rikv1alpha1.RateLimits) ([]vmm.Disk, map[string]vmImage) {
	disks := []vmm.Disk{{ID: scratchDisk, Path: scratch}}
	roots := map[string]vmImage{}
	for _, c := range containers {
		img := images[c.Name]
		at := slices.IndexFunc(disks, func(d vmm.Disk) bool { return d.Path == img.Path })
		if at < 0 {
			at = len(disks)
			disks = append(disks, vmm.Disk{ID: fmt.Sprintf("image-%d", at), Path: img.Path, ReadOnly: true})
		}
		roots[c.Name] = vmImage{Digest: img.Digest, Config: img.Config, Disk: guest.Disk{ID: disks[at].ID, Index: at}}
	}
	if limits != nil {
		for i := range disks {
			disks[i].BytesPerSecond, disks[i].OperationsPerSecond = limits.DiskBytesPerSecond, limits.DiskOperationsPerSecond
		}
	}
	return disks, roots
}

// defaultCommand is what a root file system without an image configuration runs.
var defaultCommand = []string{"/sbin/init"}

// guestProcess returns one run of a container in the guest.
func guestProcess(t rikv1alpha1.InstanceTemplate, c rikv1alpha1.Container, root vmImage, env []spec.EnvVar, hostname string, pids int64) (guest.Process, error) {
	image := spec.Image{
		Entrypoint: root.Config.Entrypoint, Cmd: root.Config.Cmd, Env: root.Config.Env,
		WorkingDir: root.Config.WorkingDir, User: root.Config.User,
	}
	if t.Function != nil && t.Function.Execution.Rootfs != "" {
		image.Entrypoint = defaultCommand
	}
	input := spec.Input{Container: c, Image: image, Env: env, Hostname: hostname}
	variables := spec.Environment(input)
	argv, err := spec.Command(c, image, variables)
	if err != nil {
		return guest.Process{}, err
	}
	security := rikv1alpha1.Security{}
	if c.Security != nil {
		security = *c.Security
	}
	capabilities, err := spec.Capabilities(c.Security, spec.EveryCapability) // the guest's kernel
	if err != nil {
		return guest.Process{}, err
	}
	p := guest.Process{
		Container: c.Name, Argv: argv, Env: variables, Dir: cleanDir(c.WorkingDir, image.WorkingDir), User: c.User, TTY: c.TTY,
		Root: root.Disk, ReadOnlyRoot: security.ReadOnlyRootFilesystem, Capabilities: capabilities, NewPrivs: security.Privileged, NonRoot: security.RunAsNonRoot,
		MemoryBytes: c.Resources.Limits.Bytes(rikv1alpha1.ResourceMemory), MilliCPU: c.Resources.Limits.MilliCPU(), PIDs: pids,
	}
	p.User = cmp.Or(p.User, image.User)
	p.Mounts, err = guestMounts(t, c)
	return p, err
}

func cleanDir(wanted, image string) string {
	if wanted == "" {
		wanted = image
	}
	return filepath.Clean("/" + wanted)
}

func guestMounts(t rikv1alpha1.InstanceTemplate, c rikv1alpha1.Container) ([]guest.Mount, error) {
	var mounts []guest.Mount
	for _, vm := range c.VolumeMounts {
		at := slices.IndexFunc(t.Volumes, func(v rikv1alpha1.Volume) bool { return v.Name == vm.Name })
		if at < 0 {
			return nil, fmt.Errorf("%w: %q, mounted at %s", spec.ErrVolume, vm.Name, vm.MountPath)
		}
		target := filepath.Clean("/" + vm.MountPath)
		if target == "/" {
			return nil, &engine.ConfigError{Err: errors.New("a volume cannot replace the root directory")}
		}
		if vm.SubPath != "" && !filepath.IsLocal(vm.SubPath) {
			return nil, &engine.ConfigError{Err: fmt.Errorf("subPath %q does not stay inside the volume", vm.SubPath)}
		}
		mounts = append(mounts, guest.Mount{
			Volume: vm.Name, Target: target, SubPath: vm.SubPath, ReadOnly: vm.ReadOnly || t.Volumes[at].EmptyDir == nil,
		})
	}
	// As on the node: one volume may be mounted inside another.
	slices.SortStableFunc(mounts, func(a, b guest.Mount) int { return strings.Count(a.Target, "/") - strings.Count(b.Target, "/") })
	return mounts, nil
}

// identity returns what a guest is configured with again after it was paused.
func (n vmNote) identity() (guest.Identity, error) {
	entropy, err := entropy()
	return guest.Identity{
		Hostname: n.Config.Hostname, Interfaces: n.Config.Interfaces, Hosts: n.Config.Hosts, Resolv: n.Config.Resolv,
		Time: time.Now(), Entropy: entropy,
	}, err
}
