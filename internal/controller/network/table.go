package network

import (
	"net/netip"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/instance"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Config configures a Table. All fields are required unless they say otherwise.
type Config struct {
	Settings  Settings
	Nodes     *index.Objects[*rikv1alpha1.Node]
	Workloads *index.Objects[*rikv1alpha1.Workload]
	Revisions *index.Objects[*rikv1alpha1.WorkloadRevision]
	Instances *index.Instances
	// Seen reports whether a node is connected.
	Seen func(node string) bool
	// Carries reports whether packets of other nodes reach the instances of a connected node. Nil
	// means always.
	Carries func(node string) bool
	// Ranges and Addresses decide which of the stored addresses are valid.
	Ranges    *Ranges
	Addresses *Addresses
}

// Table follows the views and maintains the netmap. A change of an instance that serves no port
// costs one map lookup. A change of an instance that serves ports has a constant cost, whatever
// the number of instances and nodes.
type Table struct {
	config Config

	mu sync.RWMutex
	// mu guards the fields below. exposed holds the revisions that serve ports.
	exposed map[types.NamespacedName]exposure
	journal *journal

	batches batches
}

// NewTable creates an empty table and subscribes it to the views. The listeners of Ranges and
// Addresses must be subscribed first.
func NewTable(c Config) *Table {
	t := &Table{config: c, exposed: map[types.NamespacedName]exposure{}, journal: newJournal()}
	c.Nodes.Subscribe(t.observeNode)
	c.Workloads.Subscribe(t.observeWorkload)
	c.Revisions.Subscribe(t.observeRevision)
	c.Instances.Subscribe(t.observeInstance)
	return t
}

// observeNode updates a node's entry and the entries that depend on the node's address.
// Listeners may be called out of order. Each reads the view with mu held, so the last call sees
// the last state.
func (t *Table) observeNode(before, after *rikv1alpha1.Node) {
	name := either(before, after).Name
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reviewPeerLocked(name)
	t.reviewNodeLocked(name)
}

// reviewPeerLocked updates a node's own entry.
func (t *Table) reviewPeerLocked(name string) {
	k := key{kind: peerKind, name: name}
	n := t.config.Nodes.Get(types.NamespacedName{Name: name})
	if n == nil {
		t.journal.remove(k)
	} else {
		peer := &nodev1.Peer{
			Name: name, Address: address(n.Status.Info.InternalAddress), ExternalAddress: address(n.Status.Info.ExternalAddress),
			PodCidr: t.config.Ranges.usable(n), Answers: t.config.Seen(name) && (t.config.Carries == nil || t.config.Carries(name)),
		}
		if known := t.journal.get(k); known == nil || !proto.Equal(known.peer, peer) {
			t.journal.put(&entry{key: k, peer: peer})
		}
	}
}

// NodeChanged checks again whether a node and its instances can be reached.
func (t *Table) NodeChanged(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reviewPeerLocked(name)
	t.reviewNodeLocked(name)
}

func (t *Table) reviewNodeLocked(name string) {
	for _, in := range t.config.Instances.OnNode(name) {
		t.reviewLocked(in.UID)
	}
}

func (t *Table) observeWorkload(before, after *rikv1alpha1.Workload) {
	if (before == nil || !serves(&before.Spec.InstanceTemplate)) && (after == nil || !serves(&after.Spec.InstanceTemplate)) {
		return
	}
	name := client.ObjectKeyFromObject(either(before, after))
	t.mu.Lock()
	defer t.mu.Unlock()
	if before == nil || after == nil || before.UID != after.UID {
		// Their workload may be another one now.
		for _, in := range t.config.Instances.OfWorkload(name) {
			t.reviewLocked(in.UID)
		}
	}
	k := key{kind: serviceKind, namespace: name.Namespace, name: name.Name}
	w := t.config.Workloads.Get(name)
	if w == nil || !serves(&w.Spec.InstanceTemplate) {
		t.journal.remove(k)
		return
	}
	service := &nodev1.Service{
		Key:       &nodev1.ServiceKey{Namespace: name.Namespace, Workload: name.Name},
		Addresses: t.config.Addresses.usable(w), Ports: portsOf(&w.Spec.InstanceTemplate),
	}
	if known := t.journal.get(k); known == nil || !proto.Equal(known.service, service) {
		t.journal.put(&entry{key: k, service: service})
	}
}

func (t *Table) observeRevision(before, after *rikv1alpha1.WorkloadRevision) {
	revision := either(before, after)
	if !serves(&revision.Template) {
		return // a template never changes
	}
	name := client.ObjectKeyFromObject(revision)
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.config.Revisions.Get(name); r == nil {
		delete(t.exposed, name)
	} else if e, ok := exposureOf(r); ok {
		t.exposed[name] = e
	}
	workload := types.NamespacedName{Namespace: name.Namespace, Name: revision.Labels[rikv1alpha1.LabelWorkload]}
	for _, in := range t.config.Instances.OfWorkload(workload) {
		if in.Spec.Revision == name.Name {
			t.reviewLocked(in.UID)
		}
	}
}

func (t *Table) observeInstance(before, after *rikv1alpha1.Instance) {
	in := after
	if in == nil {
		in = before
	}
	t.mu.RLock()
	_, exposed := t.exposed[types.NamespacedName{Namespace: in.Namespace, Name: in.Spec.Revision}]
	t.mu.RUnlock()
	// An instance without a node is not in the netmap yet. A revision that arrives later adds its
	// instances.
	if !exposed || in.Spec.NodeName == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reviewLocked(in.UID)
}

// reviewLocked updates the entry of one instance.
func (t *Table) reviewLocked(uid types.UID) {
	k := key{kind: endpointKind, name: string(uid)}
	in := t.config.Instances.ByUID(uid)
	var e exposure
	exposed := in != nil && in.Spec.NodeName != ""
	if exposed {
		e, exposed = t.exposed[types.NamespacedName{Namespace: in.Namespace, Name: in.Spec.Revision}]
	}
	if exposed {
		// An instance of an earlier Workload with the same name must not serve clients of its
		// successor.
		w := t.config.Workloads.Get(types.NamespacedName{Namespace: in.Namespace, Name: in.Spec.Workload})
		exposed = w == nil || instance.Belongs(in, w)
	}
	if !exposed {
		t.journal.remove(k)
		return
	}
	at := ""
	n := t.config.Nodes.Get(types.NamespacedName{Name: in.Spec.NodeName})
	if n != nil && !in.Status.Phase.Ended() {
		at = reachedAt(in, n, e.onHost)
	}
	ready := in.DeletionTimestamp == nil && serving(&in.Status) && t.config.Seen(in.Spec.NodeName)
	// Only an instance that ends normally keeps serving its existing connections. The state of an
	// instance is not certain if its node is lost, if it is suspended, or if its probe fails.
	draining := in.DeletionTimestamp != nil && !in.Status.Suspended && t.config.Seen(in.Spec.NodeName)
	known := t.journal.get(k)
	switch {
	case at == "":
		t.journal.remove(k)
	case known == nil || known.endpoint.GetAddress() != at || known.endpoint.GetReady() != ready || known.endpoint.GetDraining() != draining:
		// The other fields of an instance never change.
		t.journal.put(&entry{key: k, endpoint: &nodev1.Endpoint{
			Uid: string(uid), Service: &nodev1.ServiceKey{Namespace: in.Namespace, Workload: in.Spec.Workload},
			Name: in.Name, Node: in.Spec.NodeName, Address: at, Ready: ready, Draining: draining, Ports: e.ports,
		}})
	}
}

// serving reports whether new connections may go to an instance. While no scheduler is
// connected, the state of instances is not certain. Treating all instances as gone would
// interrupt running services, so the last state of their containers counts.
func serving(s *rikv1alpha1.InstanceStatus) bool {
	if s.Phase == rikv1alpha1.InstanceUnknown && s.Reason == instance.ReasonSchedulerUnavailable {
		unready := func(c rikv1alpha1.ContainerStatus) bool { return !c.Ready }
		return len(s.Containers) > 0 && !s.Suspended && !slices.ContainsFunc(s.Containers, unready)
	}
	return s.Phase == rikv1alpha1.InstanceRunning && s.Ready
}

// reachedAt returns the address of an instance. It is empty while the instance has none. The
// address that a node reports must lie within the node's own range. Otherwise a node could
// redirect the traffic of other nodes to itself.
func reachedAt(in *rikv1alpha1.Instance, n *rikv1alpha1.Node, onHost bool) string {
	if onHost {
		if at := address(n.Status.Info.InternalAddress); at != "" {
			return at
		}
		return address(in.Status.HostAddress)
	}
	at, err := netip.ParseAddr(in.Status.Address)
	if err != nil {
		return ""
	}
	within, err := netip.ParsePrefix(n.Spec.PodCIDR)
	if err != nil || !within.Contains(at) {
		return ""
	}
	return at.String()
}

func either[T client.Object](before, after T) T {
	if index.None(after) {
		return before
	}
	return after
}
