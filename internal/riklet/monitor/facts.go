package monitor

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/mem"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// DefaultMaxInstances is the default limit for a node's instances. Each has a supervisor, a mount
// and a network namespace.
const DefaultMaxInstances = 250

// FactsConfig contains what cannot be read from the machine.
type FactsConfig struct {
	// Path is on the file system whose size is the node's disk size. Required.
	Path string
	// Reserved is the capacity that instances cannot use.
	Reserved rikv1alpha1.ResourceList
	// MaxInstances defaults to DefaultMaxInstances.
	MaxInstances int64
	// Server is the host:port of a peer. The local address that reaches it is the node's internal
	// address. If Server is empty, the internal address is the first address of the machine that
	// rik did not add.
	Server string
	// InternalAddress and ExternalAddress override detected addresses.
	InternalAddress, ExternalAddress string
	// Info contains what the caller already knows: IDs, versions, kinds and runtimes.
	Info rikv1alpha1.NodeInfo
}

// Facts reads the facts and the capacity of the node.
func Facts(ctx context.Context, cfg FactsConfig) (*rikv1alpha1.NodeStatus, error) {
	info := cfg.Info
	capacity, err := Capacity(ctx, cfg.Path)
	if err != nil {
		return nil, err
	}
	amount := func(name rikv1alpha1.ResourceName) int64 { q := capacity[name]; return q.Value() }
	info.CPUs = int32(amount(rikv1alpha1.ResourceCPU))
	info.MemoryBytes, info.DiskBytes = amount(rikv1alpha1.ResourceMemory), amount(rikv1alpha1.ResourceDisk)
	info.OperatingSystem, info.Architecture = runtime.GOOS, runtime.GOARCH
	info.KernelVersion = kernel()
	info.Distribution, info.DistributionVersion = distribution()
	if info.Hostname, err = os.Hostname(); err != nil {
		return nil, fmt.Errorf("reading the host name: %w", err)
	}
	info.InternalAddress = cfg.InternalAddress
	if info.InternalAddress == "" {
		info.InternalAddress = Address(ctx, cfg.Server)
	}
	info.ExternalAddress = cfg.ExternalAddress
	capacity[rikv1alpha1.ResourceInstances] = *resource.NewQuantity(cmp.Or(cfg.MaxInstances, DefaultMaxInstances), resource.DecimalSI)
	return &rikv1alpha1.NodeStatus{Capacity: capacity, Allocatable: subtract(capacity, cfg.Reserved), Info: info}, nil
}

// Capacity returns the processors and memory of the machine, and the space of the file system
// that contains path.
func Capacity(ctx context.Context, path string) (rikv1alpha1.ResourceList, error) {
	memory, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the size of the memory: %w", err)
	}
	space, err := disk.UsageWithContext(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("reading the size of the disk: %w", err)
	}
	cpus, err := cpu.CountsWithContext(ctx, true)
	if err != nil {
		return nil, fmt.Errorf("counting the processors: %w", err)
	}
	return rikv1alpha1.ResourceList{
		rikv1alpha1.ResourceCPU:    *resource.NewQuantity(int64(cpus), resource.DecimalSI),
		rikv1alpha1.ResourceMemory: *resource.NewQuantity(int64(memory.Total), resource.BinarySI),
		rikv1alpha1.ResourceDisk:   *resource.NewQuantity(int64(space.Total), resource.BinarySI),
	}, nil
}

// subtract subtracts the reserved resources, and never goes below zero.
func subtract(capacity, reserved rikv1alpha1.ResourceList) rikv1alpha1.ResourceList {
	left := rikv1alpha1.ResourceList{}
	for name, q := range capacity {
		q = q.DeepCopy()
		if r, ok := reserved[name]; ok {
			q.Sub(r)
		}
		if q.Sign() < 0 {
			q = *resource.NewQuantity(0, q.Format)
		}
		left[name] = q
	}
	return left
}

func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// distribution reads os-release(5) from its standard locations.
func distribution() (name, release string) {
	for _, path := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		name, release = parseRelease(f)
		_ = f.Close()
		return name, release
	}
	return "", ""
}

// parseRelease shortens names such as "Debian GNU/Linux" to their common form.
func parseRelease(r io.Reader) (name, release string) {
	for scanner := bufio.NewScanner(r); scanner.Scan(); {
		key, value, _ := strings.Cut(scanner.Text(), "=")
		if unquoted, err := strconv.Unquote(value); err == nil {
			value = unquoted
		}
		switch key {
		case "NAME":
			name = strings.TrimSuffix(strings.TrimSuffix(value, " GNU/Linux"), " Linux")
		case "VERSION_ID":
			release = value
		}
	}
	return name, release
}

// Address returns the address at which other machines reach this one. That is the local address
// that reaches a peer (host:port). Without a peer, it is the machine's first address that rik did
// not add. It reads the kernel's routes and sends no packet. It returns "127.0.0.1" if there is no
// other address, and "" if the links cannot be read.
func Address(ctx context.Context, server string) string {
	if server != "" {
		var dialer net.Dialer
		if conn, err := dialer.DialContext(ctx, "udp", server); err == nil {
			defer func() { _ = conn.Close() }()
			if local, ok := conn.LocalAddr().(*net.UDPAddr); ok && !local.IP.IsLoopback() {
				return local.IP.String()
			}
		}
	}
	links, err := net.Interfaces()
	if err != nil {
		return ""
	}
	var addresses []net.Addr
	for _, link := range links {
		if ours(link.Name) || link.Flags&net.FlagUp == 0 {
			continue
		}
		if found, err := link.Addrs(); err == nil { // else it no longer exists
			addresses = append(addresses, found...)
		}
	}
	return firstAddress(addresses)
}

// ours reports whether a device is rik's: a device of an instance, the bridge, or the tunnel
// device. Other machines cannot reach the addresses that rik itself added.
func ours(name string) bool {
	const instance = len("rik") + 11 // the length of their names
	return name == "rik0" || strings.HasPrefix(name, "rik.") || strings.HasPrefix(name, "rik") && len(name) == instance
}

// firstAddress prefers IPv4, which every part of a cluster supports.
func firstAddress(addresses []net.Addr) string {
	var six string
	for _, a := range addresses {
		network, ok := a.(*net.IPNet)
		if !ok || !network.IP.IsGlobalUnicast() {
			continue
		}
		if network.IP.To4() != nil {
			return network.IP.String()
		}
		if six == "" {
			six = network.IP.String()
		}
	}
	return cmp.Or(six, "127.0.0.1")
}
