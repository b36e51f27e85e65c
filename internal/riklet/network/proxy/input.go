package proxy

import (
	"net/netip"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/network/netmap"
)

// Facts are the facts about its own node that the proxy needs in addition to the netmap.
type Facts struct {
	// Node is this node's name in the netmap.
	Node string
	// PodCIDR is the range of this node's instances. Its first address is the bridge's. While it
	// is invalid the proxy changes nothing, so the rules of an earlier process stay.
	PodCIDR netip.Prefix
	// Listeners are the processes of the host that listen on ports. Sync derives HostPorts and
	// LoopbackPorts from them.
	Listeners []Listener
	// HostPorts are the ports that processes of the host keep.
	HostPorts []HostPort
	// LoopbackPorts are the ports that processes keep at loopback addresses only.
	LoopbackPorts []HostPort
	// Bridge is the name of the bridge of this node's instances.
	Bridge string
	// Ways are the links on which packets of other nodes' instances arrive: the overlay's device,
	// and the link to the other nodes where packets are sent directly.
	Ways []string
	// AllowFrom are ranges outside the cluster that may reach instances, virtual addresses and
	// the name server through this node.
	AllowFrom []netip.Prefix
	// NamePort is the port of the node's name server at the bridge's address. DNS queries to port
	// 53 there are redirected to it.
	NamePort uint16
	// TunnelPort is the UDP port of the overlay, or 0 if there is none.
	TunnelPort uint16
	// Links are the links that lead to instances: the bridge, the overlay's device, and the link
	// to the other nodes. The node's own connections to 127.0.0.1 leave through them, which the
	// kernel must be configured to allow. It may be empty.
	Links []string
}

// HostPort is a port of the node itself.
type HostPort struct {
	Protocol rikv1alpha1.Protocol
	Port     uint16
}

// Listener is a process of the host that listens on a port.
type Listener struct {
	HostPort
	// Loopback is true if it listens only at loopback addresses.
	Loopback bool
	// Privileged is true if it keeps the port even if a service already has it.
	Privileged bool
}

// Input is the complete input of Render.
type Input struct {
	Snapshot *netmap.Snapshot // nil: nothing received yet
	Facts    Facts
	// Drained are the UIDs of endpoints whose drain period is over.
	Drained map[string]bool
	// Opened are the links on which rik must reset route_localnet later (localnet.go). A rule
	// contains their names, so that the kernel keeps them over a restart of the riklet.
	Opened []string
}

// active reports whether there is a network to render rules for. The settings and the PodCIDR
// must be IPv4, because iptables does not support IPv6.
func (in Input) active() bool {
	if in.Snapshot == nil {
		return false
	}
	s := in.Snapshot.Settings
	return is4(s.ClusterCIDR) && is4(s.ServiceCIDR) && is4(in.Facts.PodCIDR)
}

func is4(p netip.Prefix) bool { return p.IsValid() && p.Addr().Is4() }

// gateway returns the bridge's own address, which is the first of the range.
func (f Facts) gateway() netip.Addr { return f.PodCIDR.Masked().Addr().Next() }
