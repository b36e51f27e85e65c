// Package nodestate defines valid names of nodes and the kinds of troubles that a node reports.
// Components that report or validate them share it.
package nodestate

// TroubleKind is the kind of a problem that affects a node's instances.
type TroubleKind string

const (
	// TroubleNetwork means that the network of instances is not set up. Running instances keep
	// their network.
	TroubleNetwork TroubleKind = "network"
	// TroubleNames means that the node does not answer names.
	TroubleNames TroubleKind = "names"
	// TroubleNamesBlocked means that the node answers names, but not to instances, because their
	// questions do not arrive.
	TroubleNamesBlocked TroubleKind = "names-blocked"
	// TroubleOverlay means that packets do not pass between the node and others. Running instances
	// keep their network. The node gets no new instances while another node has no such trouble.
	TroubleOverlay TroubleKind = "overlay"
	// TroublePorts means that processes of the machine listen on ports of workloads. It does not
	// affect placement.
	TroublePorts TroubleKind = "ports"
	// TroubleImages means that image archives of the node could not be loaded. It does not affect
	// placement.
	TroubleImages TroubleKind = "images"
	// TroubleController means that the controller refuses the node's connection. The node gets no
	// Secrets, no network changes and no sessions. It is not ready and gets no new instances.
	TroubleController TroubleKind = "controller"
)

// TroubleKinds returns all kinds, in a fixed order.
func TroubleKinds() []TroubleKind {
	return []TroubleKind{TroubleNetwork, TroubleNames, TroubleNamesBlocked, TroubleOverlay, TroublePorts, TroubleImages, TroubleController}
}

// The conditions of a node for its troubles. A condition is True while the node has the trouble,
// and missing otherwise.
const (
	NodeNetworkUnavailable = "NetworkUnavailable"
	NodeNamesUnavailable   = "NamesUnavailable"
	NodeOverlayUnavailable = "OverlayUnavailable"
	NodePortConflict       = "PortConflict"
	NodeArchivesRefused    = "ImageArchivesRefused"
)
