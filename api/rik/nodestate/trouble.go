// Package nodestate says what a node may be called and what can be wrong with it, for all
// who tell or judge that.
package nodestate

// TroubleKind says what keeps a node from serving instances as it should.
type TroubleKind string

const (
	// TroubleNetwork means that the network of instances is not set up. Instances that run keep
	// what they have.
	TroubleNetwork TroubleKind = "network"
	// TroubleNames means that the node does not answer names.
	TroubleNames TroubleKind = "names"
	// TroubleNamesBlocked means that the node answers names, but not to instances, because their
	// questions do not arrive.
	TroubleNamesBlocked TroubleKind = "names-blocked"
	// TroubleOverlay means that packets do not pass between the node and others. Instances that
	// run keep what they have. It keeps new ones away only while another node has no trouble.
	TroubleOverlay TroubleKind = "overlay"
	// TroublePorts means that processes of the machine listen on ports of workloads. It keeps no
	// instances away.
	TroublePorts TroubleKind = "ports"
)

// TroubleKinds are all there are, in a fixed order.
func TroubleKinds() []TroubleKind {
	return []TroubleKind{TroubleNetwork, TroubleNames, TroubleNamesBlocked, TroubleOverlay, TroublePorts}
}

// Conditions of a node that are True while it has such a trouble, and missing otherwise.
const (
	NodeNetworkUnavailable = "NetworkUnavailable"
	NodeNamesUnavailable   = "NamesUnavailable"
	NodeOverlayUnavailable = "OverlayUnavailable"
	NodePortConflict       = "PortConflict"
)
