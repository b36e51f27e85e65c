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

// Config of a Table. All fields are needed.
type Config struct {
	Settings  Settings
	Nodes     *index.Objects[*rikv1alpha1.Node]
	Workloads *index.Objects[*rikv1alpha1.Workload]
	Revisions *index.Objects[*rikv1alpha1.WorkloadRevision]
	Instances *index.Instances
	// Seen says whether a node is heard of.
	Seen func(node string) bool
	// Carries says of a node that is heard of whether packets of others reach its instances.
	// Nil: always.
	Carries func(node string) bool
	// Ranges and Addresses say which of the stored ones are valid.
	Ranges    *Ranges
	Addresses *Addresses
}

// Table follows the views and keeps what nodes have to know. A change of an
// instance that serves no port costs one look into a map. One of an instance
// that does costs the same however many instances and nodes there are.
type Table struct {
	config Config

	mu sync.RWMutex
	// Below is guarded by mu. exposed are the revisions that serve ports; home
	// is the node of each of their instances that has one, onNode the reverse.
	exposed map[types.NamespacedName]exposure
	home    map[types.UID]string
	onNode  map[string]map[types.UID]struct{}
	journal *journal

	batches batches
}

// NewTable makes an empty table and subscribes it to the views. The listeners of
// Ranges and Addresses must have been subscribed before.
func NewTable(c Config) *Table {
	t := &Table{
		config: c, exposed: map[types.NamespacedName]exposure{},
		home: map[types.UID]string{}, onNode: map[string]map[types.UID]struct{}{}, journal: newJournal(),
	}
	c.Nodes.Subscribe(t.observeNode)
	c.Workloads.Subscribe(t.observeWorkload)
	c.Revisions.Subscribe(t.observeRevision)
	c.Instances.Subscribe(t.observeInstance)
	return t
}

// observeNode brings a node's line up to date, and what depends on its address.
// Listeners may come out of turn: each looks at the view with mu held, so that
// the last look sees the last state.
func (t *Table) observeNode(before, after *rikv1alpha1.Node) {
	name := either(before, after).Name
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reviewPeerLocked(name)
	t.reviewNodeLocked(name)
}

// reviewPeerLocked brings a node's own line up to date.
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

// NodeChanged looks again at whether a node and its instances can be reached.
func (t *Table) NodeChanged(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reviewPeerLocked(name)
	t.reviewNodeLocked(name)
}

func (t *Table) reviewNodeLocked(name string) {
	for uid := range t.onNode[name] {
		t.reviewLocked(uid)
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
		for _, in := range t.config.Instances.OfWorkload(name) { // theirs may be another one now
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
	// One that is waiting for a node is of no interest yet. A revision that is
	// not known yet brings its instances when it comes.
	if !exposed || in.Spec.NodeName == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reviewLocked(in.UID)
}

// reviewLocked brings the line of one instance up to date.
func (t *Table) reviewLocked(uid types.UID) {
	k := key{kind: endpointKind, name: string(uid)}
	in := t.config.Instances.ByUID(uid)
	var e exposure
	exposed := in != nil && in.Spec.NodeName != ""
	if exposed {
		e, exposed = t.exposed[types.NamespacedName{Namespace: in.Namespace, Name: in.Spec.Revision}]
	}
	if exposed {
		// An instance of an earlier Workload of the name serves nobody who means its successor.
		w := t.config.Workloads.Get(types.NamespacedName{Namespace: in.Namespace, Name: in.Spec.Workload})
		exposed = w == nil || instance.Belongs(in, w)
	}
	if !exposed {
		t.journal.remove(k)
		t.leaveLocked(uid)
		return
	}
	// Also one without an address: its node may yet come to have one.
	t.enterLocked(uid, in.Spec.NodeName)
	at := ""
	n := t.config.Nodes.Get(types.NamespacedName{Name: in.Spec.NodeName})
	if n != nil && !in.Status.Phase.Ended() {
		at = reachedAt(in, n, e.onHost)
	}
	ready := in.DeletionTimestamp == nil && serving(&in.Status) && t.config.Seen(in.Spec.NodeName)
	// Only an instance that ends in an orderly way goes on serving what it has: nobody knows
	// what an instance does whose node is not heard of, is suspended or fails its probe.
	draining := in.DeletionTimestamp != nil && !in.Status.Suspended && t.config.Seen(in.Spec.NodeName)
	known := t.journal.get(k)
	switch {
	case at == "":
		t.journal.remove(k)
	case known == nil || known.endpoint.GetAddress() != at || known.endpoint.GetReady() != ready || known.endpoint.GetDraining() != draining:
		// All else of an instance never changes.
		t.journal.put(&entry{key: k, endpoint: &nodev1.Endpoint{
			Uid: string(uid), Service: &nodev1.ServiceKey{Namespace: in.Namespace, Workload: in.Spec.Workload},
			Name: in.Name, Node: in.Spec.NodeName, Address: at, Ready: ready, Draining: draining, Ports: e.ports,
		}})
	}
}

// serving says whether connections may go to an instance. While no scheduler is
// connected nobody knows; taking all instances of a cluster for gone would end what
// runs, so what its containers were last counts.
func serving(s *rikv1alpha1.InstanceStatus) bool {
	if s.Phase == rikv1alpha1.InstanceUnknown && s.Reason == instance.ReasonSchedulerUnavailable {
		unready := func(c rikv1alpha1.ContainerStatus) bool { return !c.Ready }
		return len(s.Containers) > 0 && !s.Suspended && !slices.ContainsFunc(s.Containers, unready)
	}
	return s.Phase == rikv1alpha1.InstanceRunning && s.Ready
}

// reachedAt is the address of an instance, empty while it has none. What a node
// says of that must lie within its own range: it could else draw the traffic of
// others to itself.
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

func (t *Table) enterLocked(uid types.UID, node string) {
	if _, known := t.home[uid]; known {
		return // it never moves
	}
	t.home[uid] = node
	if t.onNode[node] == nil {
		t.onNode[node] = map[types.UID]struct{}{}
	}
	t.onNode[node][uid] = struct{}{}
}

func (t *Table) leaveLocked(uid types.UID) {
	node, known := t.home[uid]
	if !known {
		return
	}
	delete(t.home, uid)
	delete(t.onNode[node], uid)
	if len(t.onNode[node]) == 0 {
		delete(t.onNode, node)
	}
}

func either[T client.Object](before, after T) T {
	if index.None(after) {
		return before
	}
	return after
}
