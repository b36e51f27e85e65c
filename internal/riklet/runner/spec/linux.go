package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/cgroup"
)

// defaultCapabilities are the capabilities of root in a container. They are the defaults of
// Docker and containerd without NET_RAW, which allows a process to forge frames. ping works
// through the sysctl net.ipv4.ping_group_range instead. Podman does the same.
var defaultCapabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// allCapabilities are those of capabilities(7), Linux 5.9 and later. The index of each is the
// number that the kernel uses.
var allCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW",
	"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT",
	"CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD",
	"CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
	"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// CapabilitySet has one bit for each capability number of the kernel.
type CapabilitySet uint64

// EveryCapability is the set of a machine without restrictions.
const EveryCapability = ^CapabilitySet(0)

func (s CapabilitySet) has(name string) bool {
	i := slices.Index(allCapabilities, name)
	return i >= 0 && s&(1<<i) != 0
}

// of returns the names that are in the set, sorted.
func (s CapabilitySet) of(names []string) []string {
	held := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !s.has(name) })
	slices.Sort(held)
	return slices.Compact(held)
}

// Capabilities applies drops before additions, so that "drop ALL, add one" leaves the one. A
// container gets at most the capabilities of the node, which may be fewer than the kernel has.
// Only a capability that was added by name must exist on the node.
func Capabilities(s *rikv1alpha1.Security, node CapabilitySet) ([]string, error) {
	if s == nil {
		return node.of(defaultCapabilities), nil
	}
	if s.Privileged {
		return node.of(allCapabilities), nil
	}
	set := slices.Clone(defaultCapabilities)
	for _, name := range s.DropCapabilities {
		if strings.EqualFold(name, "ALL") {
			set = nil
			continue
		}
		full, err := capability(name)
		if err != nil {
			return nil, err
		}
		set = slices.DeleteFunc(set, func(c string) bool { return c == full })
	}
	for _, name := range s.AddCapabilities {
		if strings.EqualFold(name, "ALL") {
			return node.of(allCapabilities), nil
		}
		full, err := capability(name)
		if err != nil {
			return nil, err
		}
		if !node.has(full) {
			return nil, fmt.Errorf("%w: %s, which security.addCapabilities requests; give it to the riklet, or run the instance on another node", ErrNotHeld, full)
		}
		set = append(set, full)
	}
	return node.of(set), nil
}

// capability accepts NET_ADMIN as well as CAP_NET_ADMIN.
func capability(name string) (string, error) {
	full := strings.ToUpper(name)
	if !strings.HasPrefix(full, "CAP_") {
		full = "CAP_" + full
	}
	if !slices.Contains(allCapabilities, full) {
		return "", fmt.Errorf("%w: %q", ErrCapability, name)
	}
	return full, nil
}

// maskedPaths are hidden, because they show information about the whole machine.
var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
	"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
	"/sys/devices/virtual/powercap", "/sys/firmware",
}

// readonlyPaths are read-only, because writes to them change the whole machine.
var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

func linux(in Input) *specs.Linux {
	l := &specs.Linux{
		CgroupsPath: in.CgroupPath,
		Namespaces:  namespaces(in),
		Resources:   resources(in),
	}
	for _, d := range in.Devices {
		l.Devices = append(l.Devices, specs.LinuxDevice{
			Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor, FileMode: &d.Mode, UID: &d.UID, GID: &d.GID,
		})
	}
	if !security(in).Privileged {
		l.MaskedPaths, l.ReadonlyPaths = maskedPaths, readonlyPaths
	}
	return l
}

// namespaces returns those of the Pod, to join, and the container's own, to create.
func namespaces(in Input) []specs.LinuxNamespace {
	of := func(kind string) string { return fmt.Sprintf("/proc/%d/ns/%s", in.NamespaceOf, kind) }
	list := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.CgroupNamespace},
		{Type: specs.IPCNamespace, Path: of("ipc")},
		{Type: specs.UTSNamespace, Path: of("uts")},
	}
	if !in.HostNetwork {
		list = append(list, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: of("net")})
	}
	return list
}

// The CFS period of a CPU quota, and the smallest quota that the kernel accepts.
const (
	cpuPeriodMicros   = 100_000
	cpuMinQuotaMicros = 1_000
)

func resources(in Input) *specs.LinuxResources {
	pids := in.PIDs
	if pids <= 0 {
		pids = DefaultPIDs
	}
	r := &specs.LinuxResources{
		// Deny all devices. The runtime then allows harmless ones (null, zero, full, random,
		// urandom, tty, ptmx).
		Devices: []specs.LinuxDeviceCgroup{{Allow: security(in).Privileged, Access: "rwm"}},
		Pids:    &specs.LinuxPids{Limit: &pids},
		CPU:     cpu(in.Container.Resources),
	}
	if in.GroupOOMKill {
		r.Unified = map[string]string{"memory.oom.group": "1"}
	}
	if limit := in.Container.Resources.Limits.Bytes(rikv1alpha1.ResourceMemory); limit > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &limit}
		if in.SwapAccounting {
			r.Memory.Swap = &limit // memory and swap together: no swap beyond the limit
		}
	}
	return r
}

func cpu(r rikv1alpha1.Resources) *specs.LinuxCPU {
	requests, limits := r.Requests.MilliCPU(), r.Limits.MilliCPU()
	if requests == 0 {
		requests = limits
	}
	shares := cgroup.Shares(requests)
	c := &specs.LinuxCPU{Shares: &shares}
	if limits > 0 {
		quota := max(limits*cpuPeriodMicros/1000, cpuMinQuotaMicros)
		period := uint64(cpuPeriodMicros)
		c.Quota, c.Period = &quota, &period
	}
	return c
}

// oomScore makes the kernel first kill containers without a memory request, and last those that
// may use no more memory than they reserved.
func oomScore(r rikv1alpha1.Resources) int {
	requests := r.Requests.Bytes(rikv1alpha1.ResourceMemory)
	limits := r.Limits.Bytes(rikv1alpha1.ResourceMemory)
	switch {
	case limits > 0 && (requests == 0 || requests == limits):
		return 100
	case requests > 0:
		return 500
	default:
		return 1000
	}
}
