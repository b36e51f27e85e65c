package network

import (
	"fmt"
	"net/netip"
	"sync"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Ranges gives every node its share of the cluster's addresses, which
// spec.podCIDR keeps. It is safe for concurrent use.
type Ranges struct {
	settings Settings
	wake     func(node string)

	mu sync.Mutex
	// Below is guarded by mu. clashing are nodes whose range someone older has,
	// waiting those for which none was left.
	pool              *pool
	clashing, waiting map[string]struct{}
}

// NewRanges makes an allocator that knows of no node yet. wake is told of each
// node for which Of would answer otherwise than before; it must not block.
func NewRanges(s Settings, wake func(node string)) *Ranges {
	return &Ranges{
		settings: s, wake: wake, pool: newPool(s.ClusterCIDR, s.NodeCIDRSize),
		clashing: map[string]struct{}{}, waiting: map[string]struct{}{},
	}
}

// Observe follows the nodes: it is a listener of their view.
func (r *Ranges) Observe(before, after *rikv1alpha1.Node) {
	if after == nil {
		r.Forget(before.Name)
		return
	}
	r.mu.Lock()
	// A clash is told by Of, which the node's own pass asks.
	awake, _ := r.claimLocked(after)
	r.mu.Unlock()
	for _, name := range awake {
		r.wake(name)
	}
}

// forgetLocked frees what a node had, and names those to whom that is news: one
// that waits, and all that clashed with someone.
func (r *Ranges) forgetLocked(name string) (awake []string) {
	r.pool.release(name)
	delete(r.clashing, name)
	delete(r.waiting, name)
	for other := range r.clashing {
		awake = append(awake, other)
	}
	for other := range r.waiting {
		if !r.pool.room() {
			break
		}
		delete(r.waiting, other)
		return append(awake, other)
	}
	return awake
}

// claimLocked notes the range that a node has durably.
func (r *Ranges) claimLocked(n *rikv1alpha1.Node) (lost []string, err error) {
	if n.Spec.PodCIDR == "" {
		return nil, nil
	}
	prefix, err := netip.ParsePrefix(n.Spec.PodCIDR)
	if err != nil {
		return nil, fmt.Errorf("spec.podCIDR %q is not an address range", n.Spec.PodCIDR)
	}
	delete(r.waiting, n.Name)
	if !prefix.Addr().Is4() || prefix.Bits() > smallestNodeRange {
		return nil, fmt.Errorf("spec.podCIDR %s cannot be used: it must be IPv4 with a prefix length of at most %d", prefix, smallestNodeRange)
	}
	if r.settings.ServiceCIDR.Overlaps(prefix) {
		r.pool.release(n.Name)
		return nil, fmt.Errorf("spec.podCIDR %s overlaps --service-cidr %s", prefix, r.settings.ServiceCIDR)
	}
	lost, err = r.pool.claim(n.Name, prefix, n.CreationTimestamp.UnixNano())
	if err != nil {
		r.clashing[n.Name] = struct{}{}
		return nil, fmt.Errorf("spec.podCIDR %w", err)
	}
	delete(r.clashing, n.Name)
	for _, name := range lost {
		r.clashing[name] = struct{}{}
	}
	return lost, nil
}

// Of is the range that a node has or should be given, or why it has none that
// can be used. A range that was given stays the node's until it is deleted.
func (r *Ranges) Of(n *rikv1alpha1.Node) (podCIDR, problem string) {
	r.mu.Lock()
	podCIDR, problem, awake := r.ofLocked(n)
	r.mu.Unlock()
	for _, name := range awake {
		r.wake(name)
	}
	return podCIDR, problem
}

func (r *Ranges) ofLocked(n *rikv1alpha1.Node) (podCIDR, problem string, awake []string) {
	if n.Spec.PodCIDR != "" {
		// Claimed once more: who had it may be gone.
		lost, err := r.claimLocked(n)
		if err != nil {
			problem = err.Error() + ": delete the Node, and it joins again with another"
		}
		return n.Spec.PodCIDR, problem, lost
	}
	prefix, ok := r.pool.take(n.Name)
	if !ok {
		r.waiting[n.Name] = struct{}{}
		return "", fmt.Sprintf("no /%d of --cluster-cidr %s is left for this node: delete Nodes that are gone, or use a larger --cluster-cidr",
			r.settings.NodeCIDRSize, r.settings.ClusterCIDR), nil
	}
	return prefix.String(), "", nil
}

// Forget frees what was meant for a node that does not exist.
func (r *Ranges) Forget(name string) {
	r.mu.Lock()
	awake := r.forgetLocked(name)
	r.mu.Unlock()
	for _, other := range awake {
		r.wake(other)
	}
}

// usable is the range that other nodes may be told of: stored, and nobody else's.
func (r *Ranges) usable(n *rikv1alpha1.Node) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	have, ok := r.pool.of(n.Name)
	if !ok || n.Spec.PodCIDR != have.String() {
		return ""
	}
	return n.Spec.PodCIDR
}
