package proxy

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/network/netmap"
)

// backend is a destination of connections.
type backend struct {
	uid  string
	to   netip.AddrPort
	away bool // in the network of another node, not in the cluster's range
}

// servicePort is one port of one service.
type servicePort struct {
	service        netmap.ServiceKey
	protocol       rikv1alpha1.Protocol
	port           uint16
	virtual        []netip.Addr // where it can be reached inside the cluster
	node           bool         // on the node's addresses, too
	exceptLoopback bool         // but not at its loopback addresses
	ready          []backend    // by UID
	draining       []backend    // being deleted: no new connections, but existing flows stay for a while
}

// name identifies the port. The names of its chains are derived from it.
func (f *servicePort) name() string {
	return fmt.Sprintf("%s/%s/%s/%d", f.service.Namespace, f.service.Workload, f.protocol, f.port)
}

// servicePorts returns the ports that this node makes reachable, in a fixed order. If two services
// want the same port, the first by name gets it. The controller does not let that happen for long.
func servicePorts(in Input) []servicePort {
	if !in.active() {
		return nil
	}
	c := collector{in: in, host: map[HostPort]bool{}, virtual: make(map[virtualPort]bool, len(in.Snapshot.Services))}
	c.hostPorts()
	all := make([]servicePort, 0, len(in.Snapshot.Services))
	keys := slices.SortedFunc(maps.Keys(in.Snapshot.Services), func(a, b netmap.ServiceKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Workload, b.Workload))
	})
	for _, key := range keys {
		s := in.Snapshot.Services[key]
		for i, p := range s.Ports {
			same := func(q netmap.Port) bool { return q.Port == p.Port && q.Protocol == p.Protocol }
			if slices.ContainsFunc(s.Ports[:i], same) {
				continue
			}
			f := servicePort{service: key, protocol: p.Protocol, port: p.Port, virtual: c.addresses(s, p), node: c.onNode(key, p)}
			if len(f.virtual) == 0 && !f.node {
				continue
			}
			f.exceptLoopback = f.node && slices.Contains(in.Facts.LoopbackPorts, HostPort{p.Protocol, p.Port})
			f.ready, f.draining = c.backends(key, p)
			all = append(all, f)
		}
	}
	return all
}

// collector tracks the ports that are taken.
type collector struct {
	in      Input
	host    map[HostPort]bool // of the host's own, and of services already seen
	virtual map[virtualPort]bool
}

// virtualPort is a port of a virtual address.
type virtualPort struct {
	at       netip.AddrPort
	protocol rikv1alpha1.Protocol
}

// hostPorts collects the ports of processes of the host. It includes the ports of instances in
// this node's own network, even before they listen: their probes must reach them and no other
// endpoint.
func (c *collector) hostPorts() {
	for _, p := range c.in.Facts.HostPorts {
		c.host[p] = true
	}
	for _, endpoints := range c.in.Snapshot.Endpoints {
		for _, e := range endpoints {
			if e.Node != c.in.Facts.Node || c.in.Snapshot.Settings.ClusterCIDR.Contains(e.Address) {
				continue
			}
			for _, p := range e.Ports {
				c.host[HostPort{p.Protocol, p.TargetPort}] = true
			}
		}
	}
}

// addresses returns the virtual addresses at which this service is the first to have the port. It
// ignores addresses outside the service CIDR.
func (c *collector) addresses(s netmap.Service, p netmap.Port) []netip.Addr {
	var free []netip.Addr
	for _, a := range s.Addresses {
		at := virtualPort{netip.AddrPortFrom(a, p.Port), p.Protocol}
		if !a.Is4() || !c.in.Snapshot.Settings.ServiceCIDR.Contains(a) || c.virtual[at] {
			continue
		}
		c.virtual[at] = true
		free = append(free, a)
	}
	return free
}

// onNode reports whether the service has the port on the nodes' addresses. A request alone is not
// enough: the scheduler assigns the port by placing an instance with it, and to one workload at a
// time.
func (c *collector) onNode(key netmap.ServiceKey, p netmap.Port) bool {
	at := HostPort{p.Protocol, p.Port}
	if !ofNodes(p) || c.host[at] || !c.placed(key, p) {
		return false
	}
	c.host[at] = true
	return true
}

func ofNodes(p netmap.Port) bool {
	return p.Type == rikv1alpha1.PortNodePort || p.Type == rikv1alpha1.PortLoadBalancer
}

func (c *collector) placed(key netmap.ServiceKey, p netmap.Port) bool {
	for _, e := range c.in.Snapshot.Endpoints[key] {
		if slices.ContainsFunc(e.Ports, func(q netmap.Port) bool { return q.Port == p.Port && q.Protocol == p.Protocol && ofNodes(q) }) {
			return true
		}
	}
	return false
}

// backends returns the endpoints that serve the port, each at the port of its own revision. It
// leaves out endpoints without the port. It also leaves out those that get no connections: they
// are not ready, their node is lost, or their drain period is over.
func (c *collector) backends(key netmap.ServiceKey, p netmap.Port) (ready, draining []backend) {
	cluster := c.in.Snapshot.Settings.ClusterCIDR
	for uid, e := range c.in.Snapshot.Endpoints[key] {
		i := slices.IndexFunc(e.Ports, func(q netmap.Port) bool { return q.Port == p.Port && q.Protocol == p.Protocol })
		if i < 0 || !e.Address.Is4() {
			continue
		}
		b := backend{uid: uid, to: netip.AddrPortFrom(e.Address, e.Ports[i].TargetPort)}
		b.away = !cluster.Contains(e.Address) && e.Node != c.in.Facts.Node
		switch {
		case e.Ready:
			ready = append(ready, b)
		case e.Draining && !c.in.Drained[uid]:
			draining = append(draining, b)
		}
	}
	byUID := func(a, b backend) int { return cmp.Compare(a.uid, b.uid) }
	slices.SortFunc(ready, byUID)
	slices.SortFunc(draining, byUID)
	return ready, draining
}

// hash returns a chain name of at most 28 characters, the kernel's limit. It uses 80 bits:
// accidental collisions do not occur, and constructing one is not feasible.
func hash(prefix string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return prefix + base32.StdEncoding.EncodeToString(sum[:10])
}
