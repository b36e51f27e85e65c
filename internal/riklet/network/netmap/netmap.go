// Package netmap is what a node knows of the cluster's network: the other nodes,
// the virtual addresses, and the instances behind them. It is filled by what the
// controller sends (rik.node.v1 NetworkChanges) and kept on disk, so that a node
// which cannot reach the controller goes on with the last that it heard.
package netmap

import (
	"net/netip"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Settings hold for the whole cluster. The zero value means that the node has not
// seen of its network yet.
type Settings struct {
	ClusterCIDR netip.Prefix // all addresses of instances
	ServiceCIDR netip.Prefix // all virtual addresses
	Domain      string       // of the names, such as rik.local
}

// Peer is a node of the cluster, this one included.
type Peer struct {
	Name    string
	Address netip.Addr   // by which other nodes reach it; invalid while unknown
	PodCIDR netip.Prefix // invalid while it has none
	// External is the address at which nodes on other links reach it. If it is not valid,
	// they use Address.
	External netip.Addr
	// Answers: the cluster hears of it and its network is set up, or does not know yet.
	Answers bool
}

// Sources are the addresses that packets of the node's tunnels come from: whether they
// are translated on the way depends on who receives them. Either may be invalid.
func (p Peer) Sources() []netip.Addr { return []netip.Addr{p.Address, p.External} }

// ServiceKey names a workload that serves ports.
type ServiceKey struct{ Namespace, Workload string }

// Port is a port that clients use.
type Port struct {
	Name             string // may be empty
	Port, TargetPort uint16 // neither is 0
	Protocol         rikv1alpha1.Protocol
	Type             rikv1alpha1.PortType
}

// Service is a workload that serves ports.
type Service struct {
	Key       ServiceKey
	Addresses []netip.Addr // virtual ones
	Ports     []Port
}

// Endpoint is an instance of a workload that serves ports.
type Endpoint struct {
	UID     string
	Service ServiceKey
	Name    string // of the instance
	Node    string
	Address netip.Addr // its own, or its node's for one in the node's network
	Ready   bool       // it may get new connections
	// Draining: it is being deleted; flows that it has may stay for the drain period.
	Draining bool
	// Ports of its own revision. A service's port reaches it where port number and
	// protocol are the same, at the TargetPort given here.
	Ports []Port
}

// Snapshot is the whole table at one moment. It is shared: nobody changes it.
type Snapshot struct {
	// Partial: the controller is about to tell the whole.
	Partial   bool
	Settings  Settings
	Peers     map[string]Peer
	Services  map[ServiceKey]Service
	Endpoints map[ServiceKey]map[string]Endpoint // by UID
}
