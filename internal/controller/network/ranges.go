package network

import (
	"fmt"
	"net/netip"
	"sync"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Ranges allocates a part of the cluster's addresses to every node. It is stored in
// spec.podCIDR. It is safe for concurrent use.
type Ranges struct {
	settings Settings
	wake     func(node string)

	mu sync.Mutex
	// mu guards the fields below. clashing holds nodes whose range belongs to an older node.
	// waiting holds nodes for which no range was left.
	pool              *pool
	clashing, waiting map[string]struct{}
}

// NewRanges creates an allocator without nodes. wake is called for each node for which the
// result of Of has changed. It must not block.
func NewRanges(s Settings, wake func(node string)) *Ranges {
	return &Ranges{
		settings: s, wake: wake, pool: newPool(s.ClusterCIDR, s.NodeCIDRSize),
		clashing: map[string]struct{}{}, waiting: map[string]struct{}{},
	}
}

// Observe is a listener of the nodes' view.
func (r *Ranges) Observe(before, after *rikv1alpha1.Node) {
	if after == nil {
		r.Forget(before.Name)
		return
	}
	r.mu.Lock()
	// The node's own pass calls Of, which reports a conflict.
	awake, _ := r.claimLocked(after)
	r.mu.Unlock()
	for _, name := range awake {
		r.wake(name)
	}
}

// forgetLocked frees the range of a node. It returns the nodes whose result changed: one
// waiting node and all nodes with a conflict.
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

// claimLocked records the stored range of a node.
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

// Of returns the range that a node has or should get, or says why it has no usable range. A
// stored range stays the node's range until the node is deleted.
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
		// Claim the range again, because its previous owner may be deleted.
		lost, err := r.claimLocked(n)
		if err != nil {
			problem = err.Error() + ": delete the Node; it joins again with another range"
		}
		return n.Spec.PodCIDR, problem, lost
	}
	prefix, ok := r.pool.take(n.Name)
	if !ok {
		r.waiting[n.Name] = struct{}{}
		return "", fmt.Sprintf("no range of prefix length %d is free in --cluster-cidr %s for this node: delete Nodes that do not exist any more, or use a larger --cluster-cidr",
			r.settings.NodeCIDRSize, r.settings.ClusterCIDR), nil
	}
	return prefix.String(), "", nil
}

// Forget frees the range that was reserved for a node that does not exist.
func (r *Ranges) Forget(name string) {
	r.mu.Lock()
	awake := r.forgetLocked(name)
	r.mu.Unlock()
	for _, other := range awake {
		r.wake(other)
	}
}

// usable returns the range that may be sent to other nodes: one that is stored and belongs to
// no other node.
func (r *Ranges) usable(n *rikv1alpha1.Node) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	have, ok := r.pool.of(n.Name)
	if !ok || n.Spec.PodCIDR != have.String() {
		return ""
	}
	return n.Spec.PodCIDR
}
