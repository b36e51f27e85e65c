package proxy

import (
	"net/netip"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/network/netmap"
)

// Facts are what the proxy must know of its own node, beside the table.
type Facts struct {
	// Node is this node's name in the table.
	Node string
	// PodCIDR is the range of this node's instances; its first address is that of
	// the bridge. While it is invalid the proxy changes nothing: rules of an earlier
	// process stay.
	PodCIDR netip.Prefix
	// Listeners are the processes of the host that listen on ports. Sync decides by
	// them about the next two.
	Listeners []Listener
	// HostPorts stay with processes of the host that listen on them.
	HostPorts []HostPort
	// LoopbackPorts are the same at loopback addresses only.
	LoopbackPorts []HostPort
	// Bridge is the link of this node's instances.
	Bridge string
	// Ways are the links by which packets of other nodes' instances arrive: the overlay's
	// device, and the link to the other nodes where packets go straight.
	Ways []string
	// AllowFrom are ranges outside the cluster that may use the addresses of instances,
	// virtual addresses and names through this node.
	AllowFrom []netip.Prefix
	// NamePort is where the node's name server listens at the bridge's address. Questions
	// to port 53 there are redirected to it.
	NamePort uint16
	// TunnelPort is the UDP port of the overlay; 0: there is none.
	TunnelPort uint16
	// Links lead to instances: the bridge, the overlay's device, and the link to the
	// other nodes. Connections of the node's own to 127.0.0.1 leave through them,
	// which the kernel must be told to allow. May be empty.
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
	// Loopback: at loopback addresses only.
	Loopback bool
	// Privileged: it keeps the port even if a service has it already.
	Privileged bool
}

// Input is all that Render goes by.
type Input struct {
	Snapshot *netmap.Snapshot // nil: nothing heard yet
	Facts    Facts
	// Drained are the UIDs of endpoints whose drain period is over.
	Drained map[string]bool
	// Opened are the links whose route_localnet is ours to take back (localnet.go).
	// They are written into a rule: the kernel keeps them for a later life of ours.
	Opened []string
}

// active says whether there is a network to have rules for. Settings, PodCIDR and
// everything else that is not IPv4 is passed over: iptables has no place for it.
func (in Input) active() bool {
	if in.Snapshot == nil {
		return false
	}
	s := in.Snapshot.Settings
	return is4(s.ClusterCIDR) && is4(s.ServiceCIDR) && is4(in.Facts.PodCIDR)
}

func is4(p netip.Prefix) bool { return p.IsValid() && p.Addr().Is4() }

// gateway is the bridge's own address: the first of the range.
func (f Facts) gateway() netip.Addr { return f.PodCIDR.Masked().Addr().Next() }
