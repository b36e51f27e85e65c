// Package netmap is a node's copy of the cluster's network: the other nodes, the virtual
// addresses, and the instances behind them. The controller sends it (rik.node.v1 NetworkChanges).
// It is saved to disk, so that a node that cannot reach the controller continues with the last
// copy.
package netmap

import (
	"net/netip"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Settings apply to the whole cluster. The zero value means that the node has not received them
// yet.
type Settings struct {
	ClusterCIDR netip.Prefix // all addresses of instances
	ServiceCIDR netip.Prefix // all virtual addresses
	Domain      string       // of DNS names, such as rik.local
}

// Peer is a node of the cluster, including this one.
type Peer struct {
	Name    string
	Address netip.Addr   // at which other nodes reach it; invalid while unknown
	PodCIDR netip.Prefix // invalid while it has none
	// External is the address at which nodes on other links reach it. If it is not valid, they
	// use Address.
	External netip.Addr
	// Answers is true if the cluster receives the node's heartbeats, and the node's network is
	// set up or its state is not known yet.
	Answers bool
}

// Sources returns the possible source addresses of the node's tunnel packets. NAT on the path may
// translate them, which depends on the receiver. Either may be invalid.
func (p Peer) Sources() []netip.Addr { return []netip.Addr{p.Address, p.External} }

// ServiceKey identifies a workload that serves ports.
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
	Addresses []netip.Addr // virtual addresses
	Ports     []Port
}

// Endpoint is an instance of a workload that serves ports.
type Endpoint struct {
	UID     string
	Service ServiceKey
	Name    string // of the instance
	Node    string
	Address netip.Addr // its own, or its node's if it uses the node's network
	Ready   bool       // it may receive new connections
	// Draining is true while the instance is being deleted. Its existing flows may stay for the
	// drain period.
	Draining bool
	// Ports are the ports of the instance's own revision. A service's port leads to the Port with
	// the same number and protocol, at its TargetPort.
	Ports []Port
}

// Snapshot is the whole netmap at one moment. It is shared and must not be changed.
type Snapshot struct {
	// Partial is true until the controller has sent the complete netmap.
	Partial   bool
	Settings  Settings
	Peers     map[string]Peer
	Services  map[ServiceKey]Service
	Endpoints map[ServiceKey]map[string]Endpoint // by UID
}
