package instance

import (
	"context"
	"errors"
	"net/netip"
)

// ErrNetworkNotReady is returned while the node cannot give an instance its
// place in the cluster's network: nobody told it its addresses yet, they clash
// with the host's, or all are in use. It is waited for, under every restart
// policy.
var ErrNetworkNotReady = errors.New("the network of this node is not ready")

// Network gives instances their place in the cluster's network. Drivers call
// it; internal/riklet/network has it. Its methods may be called from any
// goroutine, for one UID by one at a time.
type Network interface {
	// Ready says, without waiting, why nothing can be attached now: an
	// ErrNetworkNotReady whose text is meant for users.
	Ready() error
	// Attach connects the network namespace of a process, whose loopback is up
	// already. Called again for the same namespace it finds it connected and
	// gives the same answer; called for another one it moves the instance
	// there. Unless it succeeds it may leave things behind, which Detach
	// removes.
	Attach(ctx context.Context, uid string, pid int) (Attachment, error)
	// Detach removes whatever Attach made, by whichever process, and frees the
	// address. It needs nothing but the UID; one that has nothing is no error.
	Detach(ctx context.Context, uid string) error
	// Keep detaches all but the given instances. A driver calls it once, before
	// its first Attach, with those that run since before this process.
	Keep(ctx context.Context, uids []string) error
}

// Attachment is an instance's place in the network.
type Attachment struct {
	// Address inside, with the length of the prefix that it is configured with.
	Address netip.Prefix `json:"address"`
	// Gateway is where everything else is reached.
	Gateway netip.Addr `json:"gateway"`
	// DNS answers the names of the cluster and all others.
	DNS netip.Addr `json:"dns"`
	// Domain of the cluster's names, such as rik.local.
	Domain string `json:"domain"`
}
