// Package overlay lets the instances of different nodes reach each other. [Desired] computes the
// desired state from the netmap. [Apply] applies it to the kernel, and changes only what belongs
// to rik: the device [Device], and routes with bridge.RouteProtocol.
//
// A node on the same link is reached by a plain route. Every other node is reached through a
// VXLAN tunnel. Nodes do not exchange data about tunnels: everything follows from a node's
// address and its range.
package overlay

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"rik.dev/rik/internal/riklet/network/netmap"
)

const (
	// Device is the name of the tunnel device.
	Device = "rik.1"
	// VNI is the VXLAN network identifier of the tunnels.
	VNI = 4096
	// Port is the UDP port of the tunnels. Linux used it before there was a standard port, so
	// firewalls of clusters often have it open already.
	Port = 8472
	// Overhead is what a tunnel adds to a packet: Ethernet, IPv4, UDP and VXLAN.
	Overhead = 14 + 20 + 8 + 8
)

// Host is this node as its kernel describes it.
type Host struct {
	// Name is the name of the node.
	Name string
	// Address is the address at which other nodes reach this one. It is invalid while unknown.
	Address netip.Addr
	// Link is the index of the link that has that address. It is 0 if no link has it, as behind a
	// NAT. Then all traffic uses tunnels.
	Link int
	// LinkName is the name of that link.
	LinkName string
	// OnLink are the subnets of that link.
	OnLink []netip.Prefix
	// MTU is the MTU of that link.
	MTU int
	// Bridge is the index of the bridge of this node's instances, or 0 if there is none yet.
	Bridge int
}

// Plan is the desired state of the kernel. The zero value has nothing.
type Plan struct {
	// Tunnel is nil if this node needs none.
	Tunnel *Tunnel
	// Direct are routes to nodes on the same link.
	Direct []Route
	// Virtual is the route to the virtual addresses, or nil if there is no bridge yet. No machine
	// has these addresses. The node proxy replaces them, but only after the kernel has found a
	// route, and a node may have no default route.
	Virtual *Route
	// Refused lists the nodes that are left out, and why.
	Refused []string
}

// Route is a route to a node's instances, or to destinations on a link if Via is invalid.
type Route struct {
	To   netip.Prefix
	Via  netip.Addr
	Link int
}

// Tunnel is this node's end of the tunnels, and the other ends.
type Tunnel struct {
	MAC   net.HardwareAddr
	Local netip.Addr // source of the outer packets; invalid: the kernel chooses
	Inner netip.Addr // address of the tunnel device itself
	MTU   int
	Ends  []End
}

// End is the tunnel end of another node.
type End struct {
	Name  string // of the node
	To    netip.Prefix
	Inner netip.Addr
	MAC   net.HardwareAddr
	Outer netip.Addr
}

// Desired computes what this node needs to reach all others. It depends only on its arguments.
func Desired(s *netmap.Snapshot, host Host) Plan {
	own := s.Peers[host.Name].PodCIDR
	var plan Plan
	if own.IsValid() && host.Bridge != 0 && s.Settings.ServiceCIDR.IsValid() {
		plan.Virtual = &Route{To: s.Settings.ServiceCIDR.Masked(), Link: host.Bridge}
	}
	if !own.IsValid() || !usable(host.Address) {
		return plan
	}
	taken := ranges{taken: map[netip.Prefix]bool{}, above: map[netip.Prefix]bool{}}
	taken.add(own)
	for _, p := range sorted(s.Peers) {
		direct := host.onLink(p.Address)
		if !direct && usable(p.External) {
			p.Address = p.External
		}
		if p.Name == host.Name || !p.PodCIDR.IsValid() || !p.Address.IsValid() {
			continue
		}
		if why := refuse(p, s.Settings.ClusterCIDR, host.Address, taken); why != "" {
			plan.Refused = append(plan.Refused, why)
			continue
		}
		taken.add(p.PodCIDR)
		// The tunnel device exists even if all nodes are on this node's link. Other nodes may
		// have different links and send through tunnels.
		if plan.Tunnel == nil {
			plan.Tunnel = &Tunnel{MAC: mac(own), Inner: own.Addr(), MTU: MTU(host)}
			if host.Link != 0 { // else the kernel could not send from it
				plan.Tunnel.Local = host.Address
			}
		}
		if direct {
			plan.Direct = append(plan.Direct, Route{To: p.PodCIDR, Via: p.Address, Link: host.Link})
			continue
		}
		plan.Tunnel.Ends = append(plan.Tunnel.Ends, End{Name: p.Name, To: p.PodCIDR, Inner: p.PodCIDR.Addr(), MAC: mac(p.PodCIDR), Outer: p.Address})
	}
	return plan
}

func sorted(peers map[string]netmap.Peer) []netmap.Peer {
	all := make([]netmap.Peer, 0, len(peers))
	for _, p := range peers {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b netmap.Peer) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// usable reports whether another machine can be reached at the address by IPv4.
func usable(a netip.Addr) bool { return a.Is4() && !a.IsLoopback() }

// refuse returns why a node must not be routed to, because its range or address would cut off
// other nodes or external networks. It returns "" if there is no reason.
func refuse(p netmap.Peer, cluster netip.Prefix, own netip.Addr, taken ranges) string {
	switch {
	case !usable(p.Address):
		return fmt.Sprintf("node %s has the address %s, at which other nodes cannot reach it over IPv4", p.Name, p.Address)
	case p.Address == own:
		return fmt.Sprintf("node %s has the address %s of this node", p.Name, p.Address)
	case !cluster.Contains(p.PodCIDR.Addr()) || p.PodCIDR.Bits() < cluster.Bits():
		return fmt.Sprintf("node %s has the pod CIDR %s outside the cluster's range, %s", p.Name, p.PodCIDR, cluster)
	case taken.overlap(p.PodCIDR):
		return fmt.Sprintf("node %s has the pod CIDR %s, which overlaps with the pod CIDR of another node", p.Name, p.PodCIDR)
	}
	return ""
}

// ranges is a set of ranges that do not overlap. A lookup takes at most one step per address bit,
// because a cluster may have thousands of nodes.
type ranges struct{ taken, above map[netip.Prefix]bool }

// add adds a range, and records all larger ranges around it.
func (r ranges) add(p netip.Prefix) {
	r.taken[p] = true
	for bits := range p.Bits() {
		r.above[shortened(p, bits)] = true
	}
}

func (r ranges) overlap(p netip.Prefix) bool {
	for bits := range p.Bits() {
		if r.taken[shortened(p, bits)] {
			return true
		}
	}
	return r.taken[p] || r.above[p]
}

// shortened returns the range of the given length around p.
func shortened(p netip.Prefix, bits int) netip.Prefix {
	return netip.PrefixFrom(p.Addr(), bits).Masked()
}

func (h Host) onLink(a netip.Addr) bool {
	return h.Link != 0 && slices.ContainsFunc(h.OnLink, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Limits for the MTU of instances: the minimum of IPv6, and an assumption for a host whose MTU is
// not known.
const (
	minMTU, ordinaryMTU = 1280, 1500
	// maxMTU is the MTU of jumbo frames. The loopback's MTU is larger.
	maxMTU = 9000
)

// MTU returns the largest MTU of instances whose packets fit into a tunnel.
func MTU(host Host) int {
	underlay := cmp.Or(host.MTU, ordinaryMTU)
	return max(min(underlay, maxMTU)-Overhead, minMTU)
}

// mac returns the MAC address of a node's tunnel device. Every node can derive it from the node's
// range. The first byte marks it as unicast and locally administered.
func mac(p netip.Prefix) net.HardwareAddr {
	a := p.Addr().As4()
	return net.HardwareAddr{0x06, 'r', a[0], a[1], a[2], a[3]}
}
