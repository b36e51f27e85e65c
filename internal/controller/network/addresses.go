package network

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/instance"
)

// maxOutside bounds how many node addresses the status of a workload lists. The list is for
// people and for name servers, which need only a few.
const maxOutside = 32

// Addresses allocates a virtual address to every workload that serves ports. The address is
// stored as the first of status.addresses. It is safe for concurrent use.
type Addresses struct {
	settings  Settings
	workloads *index.Objects[*rikv1alpha1.Workload]
	nodes     *index.Objects[*rikv1alpha1.Node]
	wake      func(types.NamespacedName)

	mu sync.Mutex
	// mu guards the fields below. Owners in the pool are UIDs, and names maps them to workloads.
	// waiting holds workloads for which no address was left. balanced holds workloads that serve
	// ports of type LoadBalancer.
	pool              *pool
	names             map[types.UID]types.NamespacedName
	waiting, balanced map[types.UID]struct{}
	// outside holds the addresses of nodes at which LoadBalancer ports can be reached. It is
	// computed again when stale is set.
	outside []string
	stale   bool
}

// NewAddresses creates an allocator without workloads. wake is called for each workload for
// which the result of Of has changed. It must not block.
func NewAddresses(s Settings, workloads *index.Objects[*rikv1alpha1.Workload], nodes *index.Objects[*rikv1alpha1.Node], wake func(types.NamespacedName)) *Addresses {
	return &Addresses{
		settings: s, workloads: workloads, nodes: nodes, wake: wake, pool: newAddressPool(s.ServiceCIDR),
		names: map[types.UID]types.NamespacedName{}, waiting: map[types.UID]struct{}{}, balanced: map[types.UID]struct{}{},
		stale: true,
	}
}

// Observe is a listener of the workloads' view. It frees an address only when it is no longer
// in the store, and not when the removal is only intended. Otherwise the next controller could
// find the address on two workloads.
func (a *Addresses) Observe(before, after *rikv1alpha1.Workload) {
	var awake []types.NamespacedName
	a.mu.Lock()
	if before != nil && (after == nil || after.UID != before.UID) {
		awake = a.forgetLocked(before.UID)
	}
	if after != nil {
		awake = append(awake, a.claimLocked(after)...)
	}
	a.mu.Unlock()
	for _, key := range awake {
		a.wake(key)
	}
}

func (a *Addresses) claimLocked(w *rikv1alpha1.Workload) (awake []types.NamespacedName) {
	address, ok := a.virtual(w)
	if !ok {
		if !serves(&w.Spec.InstanceTemplate) {
			return a.forgetLocked(w.UID)
		}
		return nil
	}
	a.names[w.UID] = client.ObjectKeyFromObject(w)
	// The older workload keeps the address. The workload that lost it gets another in its next
	// pass.
	lost, _ := a.pool.claim(string(w.UID), netip.PrefixFrom(address, address.BitLen()), w.CreationTimestamp.UnixNano())
	for _, owner := range lost {
		awake = append(awake, a.names[types.UID(owner)])
	}
	return awake
}

// forgetLocked frees the address of a workload, and returns a workload that waits for one.
func (a *Addresses) forgetLocked(uid types.UID) []types.NamespacedName {
	if _, known := a.names[uid]; !known {
		return nil
	}
	a.pool.release(string(uid))
	delete(a.names, uid)
	delete(a.waiting, uid)
	delete(a.balanced, uid)
	for other := range a.waiting {
		if !a.pool.room() {
			break
		}
		delete(a.waiting, other)
		return []types.NamespacedName{a.names[other]}
	}
	return nil
}

// virtual finds the virtual address in a status. An address of an earlier --service-cidr does
// not count.
func (a *Addresses) virtual(w *rikv1alpha1.Workload) (netip.Addr, bool) {
	for _, text := range w.Status.Addresses {
		if address, err := netip.ParseAddr(text); err == nil && a.settings.ServiceCIDR.Contains(address) {
			return address, true
		}
	}
	return netip.Addr{}, false
}

// Of returns the addresses that a workload has or should have, the virtual one first, or says
// why it has none.
func (a *Addresses) Of(w *rikv1alpha1.Workload) (addresses []string, problem string) {
	if !serves(&w.Spec.InstanceTemplate) {
		return nil, ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	name := client.ObjectKeyFromObject(w)
	if known := a.workloads.Get(name); known == nil || known.UID != w.UID {
		return nil, "" // deleted; its address was freed
	}
	a.names[w.UID] = name
	prefix, ok := a.pool.take(string(w.UID))
	if ok {
		addresses = append(addresses, prefix.Addr().String())
	} else {
		a.waiting[w.UID] = struct{}{}
		problem = fmt.Sprintf("all addresses of --service-cidr %s are in use: delete workloads that serve ports, or use a larger --service-cidr", a.settings.ServiceCIDR)
	}
	if !hasType(&w.Spec.InstanceTemplate, rikv1alpha1.PortLoadBalancer) {
		delete(a.balanced, w.UID)
		return addresses, problem
	}
	a.balanced[w.UID] = struct{}{}
	if a.stale {
		a.outside, a.stale = outside(a.nodes.All()), false
	}
	return append(addresses, a.outside...), problem
}

// usable returns the virtual addresses that may be sent to nodes: those that are stored and
// belong to no other workload.
func (a *Addresses) usable(w *rikv1alpha1.Workload) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	stored, ok := a.virtual(w)
	if !ok {
		return nil
	}
	if held, ok := a.pool.of(string(w.UID)); !ok || held.Addr() != stored {
		return nil
	}
	return []string{stored.String()}
}

// ObserveNode is a listener of the nodes' view.
func (a *Addresses) ObserveNode(before, after *rikv1alpha1.Node) {
	if entrance(before) == entrance(after) {
		return
	}
	a.mu.Lock()
	a.stale = true
	awake := make([]types.NamespacedName, 0, len(a.balanced))
	for uid := range a.balanced {
		awake = append(awake, a.names[uid])
	}
	a.mu.Unlock()
	for _, key := range awake {
		a.wake(key)
	}
}

// way holds the addresses at which a node can be reached.
type way struct{ internal, external string }

// entrance returns the addresses at which a node accepts traffic from outside. It is empty
// while the node is lost. While no scheduler is connected, the last known state counts.
func entrance(n *rikv1alpha1.Node) way {
	if n == nil || n.DeletionTimestamp != nil {
		return way{}
	}
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		if c.Type == rikv1alpha1.NodeReady && (c.Status == "True" || c.Reason == instance.ReasonSchedulerUnavailable) {
			return way{address(n.Status.Info.InternalAddress), address(n.Status.Info.ExternalAddress)}
		}
	}
	return way{}
}

// outside returns the external addresses of the ready nodes, sorted by node name. If no node
// has an external address, it returns the internal ones.
func outside(nodes []*rikv1alpha1.Node) []string {
	slices.SortFunc(nodes, func(a, b *rikv1alpha1.Node) int { return cmp.Compare(a.Name, b.Name) })
	var external, internal []string
	for _, n := range nodes {
		w := entrance(n)
		if w.external != "" && !slices.Contains(external, w.external) && len(external) < maxOutside {
			external = append(external, w.external)
		}
		if w.internal != "" && len(internal) < maxOutside && !slices.Contains(internal, w.internal) {
			internal = append(internal, w.internal)
		}
	}
	if len(external) > 0 {
		return external
	}
	return internal
}

// address returns the text if it is an IP address, and an empty string otherwise.
func address(text string) string {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return ""
	}
	return a.Unmap().String()
}
