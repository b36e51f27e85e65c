package instance

import (
	"context"
	"errors"
	"net/netip"
)

// ErrNetworkNotReady is returned while the node cannot connect an instance to the cluster's
// network. Either the controller has not sent the node's address range yet, or the range overlaps
// with the host's networks, or all addresses are in use. The instance waits, under every restart
// policy.
var ErrNetworkNotReady = errors.New("the network of this node is not ready")

// Network connects instances to the cluster's network. Drivers call it, and internal/riklet/network
// implements it. Its methods may be called from any goroutine. Only one goroutine at a time may
// call them for one UID.
type Network interface {
	// Ready returns, without waiting, why no instance can be attached now. The error is an
	// ErrNetworkNotReady, and its text is meant for users.
	Ready() error
	// Attach connects the network namespace of a process, whose loopback is already up. A repeated
	// call for the same namespace returns the same result. A call for another namespace moves the
	// instance there. A failed call may leave devices behind, which Detach removes.
	Attach(ctx context.Context, uid string, pid int) (Attachment, error)
	// Detach removes everything that Attach created, in any process, and frees the address. It
	// needs only the UID. A UID without an attachment is no error.
	Detach(ctx context.Context, uid string) error
	// Keep detaches all instances except the given ones. A driver calls it once, before its first
	// Attach, with the instances that an earlier process started and that still run.
	Keep(ctx context.Context, uids []string) error
}

// Attachment describes how an instance is connected to the network.
type Attachment struct {
	// Address is the address inside, with the prefix length that it is configured with.
	Address netip.Prefix `json:"address"`
	// Gateway is the next hop to all other addresses.
	Gateway netip.Addr `json:"gateway"`
	// DNS is the name server for the cluster's names and all others.
	DNS netip.Addr `json:"dns"`
	// Domain is the domain of the cluster's names, such as rik.local.
	Domain string `json:"domain"`
}
