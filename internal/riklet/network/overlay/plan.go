// Package overlay lets the instances of different nodes reach each other. What
// should be is computed from the network's table by [Desired]; [Apply] makes the
// kernel's state so, and touches only what is rik's: the device [Device], and
// routes that bear bridge.RouteProtocol.
//
// A node that is on the same link is reached by a plain route. To any other goes
// a VXLAN tunnel. Nothing about tunnels is exchanged between nodes: everything
// follows from a node's address and its range.
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
	// Device is the name of the tunnels' end.
	Device = "rik.1"
	// VNI of the tunnels.
	VNI = 4096
	// Port of the tunnels: the one that Linux used before there was a standard.
	// Firewalls of clusters have it open already.
	Port = 8472
	// Overhead is what a tunnel adds to a packet: Ethernet, IPv4, UDP and VXLAN.
	Overhead = 14 + 20 + 8 + 8
)

// Host is this node as its kernel sees it.
type Host struct {
	// Name of the node.
	Name string
	// Address by which other nodes reach this one; invalid while unknown.
	Address netip.Addr
	// Link has that address. It is 0 when no link has, as behind a NAT; then
	// everything goes through tunnels.
	Link int
	// LinkName is that link's.
	LinkName string
	// OnLink are the subnets of that link.
	OnLink []netip.Prefix
	// MTU of that link.
	MTU int
	// Bridge is the link of this node's instances; 0 while there is none.
	Bridge int
}

// Plan is what should be in the kernel. The zero value is nothing at all.
type Plan struct {
	// Tunnel is nil when this node needs none.
	Tunnel *Tunnel
	// Direct are routes to nodes on the same link.
	Direct []Route
	// Virtual leads to the virtual addresses; nil before there is a bridge. Nobody
	// has them: the node proxy puts another in their place, but only after the
	// kernel has found a way for them. Without a default route there would be none.
	Virtual *Route
	// Refused says which nodes are left out, and why.
	Refused []string
}

// Route leads to a node's instances, or to what is on a link when Via is invalid.
type Route struct {
	To   netip.Prefix
	Via  netip.Addr
	Link int
}

// Tunnel is this node's end and all that it knows of the others'.
type Tunnel struct {
	MAC   net.HardwareAddr
	Local netip.Addr // of the outer packets; invalid: as the kernel routes them
	Inner netip.Addr // of the end itself
	MTU   int
	Ends  []End
}

// End is that of another node.
type End struct {
	Name  string // of the node
	To    netip.Prefix
	Inner netip.Addr
	MAC   net.HardwareAddr
	Outer netip.Addr
}

// Desired computes what this node needs to reach all others. It depends on
// nothing but its arguments.
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
		// The end is there even if all are on our link: they may see that otherwise,
		// and send through tunnels.
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

// usable are addresses at which another machine can be reached by IPv4.
func usable(a netip.Addr) bool { return a.Is4() && !a.IsLoopback() }

// refuse says why a node must not be routed to: what it claims would cut off
// others or the outside.
func refuse(p netmap.Peer, cluster netip.Prefix, own netip.Addr, taken ranges) string {
	switch {
	case !usable(p.Address):
		return fmt.Sprintf("node %s has the address %s, at which others cannot reach it by IPv4", p.Name, p.Address)
	case p.Address == own:
		return fmt.Sprintf("node %s has the address %s of this node", p.Name, p.Address)
	case !cluster.Contains(p.PodCIDR.Addr()) || p.PodCIDR.Bits() < cluster.Bits():
		return fmt.Sprintf("node %s has the range %s outside the cluster's, %s", p.Name, p.PodCIDR, cluster)
	case taken.overlap(p.PodCIDR):
		return fmt.Sprintf("node %s has the range %s, part of which another node has", p.Name, p.PodCIDR)
	}
	return ""
}

// ranges are some that do not overlap. Asking takes as long as an address has
// bits, however many there are: a cluster may have thousands of nodes.
type ranges struct{ taken, above map[netip.Prefix]bool }

// add notes a range, and all larger ones around it.
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

// shortened is the range of that length around another.
func shortened(p netip.Prefix, bits int) netip.Prefix {
	return netip.PrefixFrom(p.Addr(), bits).Masked()
}

func (h Host) onLink(a netip.Addr) bool {
	return h.Link != 0 && slices.ContainsFunc(h.OnLink, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Limits of what instances' links get: the least that IPv6 allows, and what
// any network carries when nothing is known of the host's.
const (
	leastMTU, ordinaryMTU = 1280, 1500
	// mostMTU is that of jumbo frames. A loopback has more.
	mostMTU = 9000
)

// MTU is what an instance's packets may have to fit into a tunnel.
func MTU(host Host) int {
	underlay := cmp.Or(host.MTU, ordinaryMTU)
	return max(min(underlay, mostMTU)-Overhead, leastMTU)
}

// mac is the address of a node's end, known to all who know the node's range.
// The first byte says that it is one machine's and locally administered.
func mac(p netip.Prefix) net.HardwareAddr {
	a := p.Addr().As4()
	return net.HardwareAddr{0x06, 'r', a[0], a[1], a[2], a[3]}
}
