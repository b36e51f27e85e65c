// Package facts gathers the facts about this machine that package doctor checks. It reads /proc, /sys
// and the files of rik, asks the kernel over netlink, and tries features in namespaces that end with
// the attempt. It changes nothing of the machine, except that the kernel may load modules. It writes
// only temporary files in the state directory.
package facts

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/portowner"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/version"
)

// Config says what to look at.
type Config struct {
	// Role is what the machine is for. Required.
	Role doctor.Role
	// DataDir is the directory of the cluster's data; empty for a machine without a control plane.
	DataDir string
	// StateDir, RunDir and CgroupParent are the node's. Required, also without a node: an earlier one
	// may have left something there.
	StateDir, RunDir, CgroupParent string
	// NoNetwork is true if the node has no network for instances.
	NoNetwork bool
	// NoNode is true if the machine runs no instances.
	NoNode bool
	// Server is the URL of the API, or empty. WorkersPort and NodesPort are the ports for nodes there.
	Server                 string
	WorkersPort, NodesPort int
	// Ports are the ports that rik needs. The fields about who has them are filled in.
	Ports []doctor.Port
	// Programs are the programs that rik needs, with a path if it is known. The rest is filled in.
	Programs []doctor.Program
	// Claims are the ranges of the cluster. The first one is that of the instances. Required.
	Claims []bridge.ClusterRange
	// Timeout bounds each attempt to connect. 0 means DefaultTimeout.
	Timeout time.Duration
}

// DefaultTimeout is the default of Config.Timeout.
const DefaultTimeout = 5 * time.Second

// gatherer has what several parts of the facts need.
type gatherer struct {
	cfg       Config
	processes []process
}

// Gather returns the facts. Unknown facts are missing.
func Gather(ctx context.Context, cfg Config) *doctor.Machine {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	// Netlink and /proc/thread-self show the network namespace of the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g := &gatherer{cfg: cfg, processes: processes()}
	m := &doctor.Machine{Role: cfg.Role, NoNode: cfg.NoNode, Root: os.Geteuid() == 0, Version: version.Version, Now: time.Now()}
	m.Hostname, _ = os.Hostname()
	m.Distribution = distribution()
	m.Kernel = g.kernel(ctx)
	m.Cgroup = g.cgroup(m.Root)
	m.Firewall = g.firewall(ctx, m.Root)
	m.Network = g.network()
	m.Ports = g.ports()
	m.Clock = g.clock()
	m.Directories = g.directories(m.Root)
	m.Limits = g.limits()
	m.Programs = g.programs(ctx)
	m.Processes = g.running()
	m.Certificates, m.Exposed = g.certificates()
	m.Server, m.Clock.Skew = g.server(ctx)
	m.Node = g.node(m.Firewall)
	m.Host = g.host(ctx, m.Hostname)
	return m
}

// clusterRange is the range of the instances.
func (g *gatherer) clusterRange() netip.Prefix { return g.cfg.Claims[0].Prefix }

func distribution() doctor.Distribution {
	var d doctor.Distribution
	for _, path := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			if unquoted, err := strconv.Unquote(value); err == nil {
				value = unquoted
			}
			switch key {
			case "ID":
				d.ID = value
			case "ID_LIKE":
				d.Like = strings.Fields(value)
			case "NAME":
				d.Name = value
			case "VERSION_ID":
				d.Version = value
			}
		}
		break
	}
	return d
}

func (g *gatherer) ports() []doctor.Port {
	ports := slices.Clone(g.cfg.Ports)
	for i := range ports {
		p := &ports[i]
		owner, err := portowner.Find(p.Protocol, p.Number)
		p.Taken, p.Owner = err == nil || errors.Is(err, portowner.ErrHidden), owner
		if owner.PID != 0 {
			p.Unit = unitOf(owner.PID)
		} else if p.Taken && p.Protocol == portowner.UDP {
			p.Device = tunnelAt(p.Number)
		}
	}
	return ports
}

// tunnelAt returns the VXLAN device that has a port, or "". The sockets of the kernel belong to no
// process.
func tunnelAt(port int) string {
	links, err := netlink.LinkList()
	if err != nil {
		return ""
	}
	for _, link := range links {
		if tunnel, ok := link.(*netlink.Vxlan); ok && tunnel.Port == port {
			return tunnel.Attrs().Name
		}
	}
	return ""
}

// number reads a file with one number. It returns 0 if it cannot, or if the file has "max".
func number(path string) uint64 {
	n, err := strconv.ParseUint(text(path), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// text reads a small file without the space around it. It returns "" if it cannot.
func text(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// probe is the result of an attempt.
func probe(err error) doctor.Probe {
	if err == nil {
		return doctor.Probe{Tried: true}
	}
	return doctor.Probe{Tried: true, Err: err.Error()}
}
