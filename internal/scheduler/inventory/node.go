package inventory

import (
	"cmp"
	"container/list"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/scheduler/placement"
)

// node is what is known of one node, by the controller's word (object) and by
// its own (status).
type node struct {
	name    string
	object  *rikv1alpha1.Node
	listing uint64

	// Registration is what the node told when it joined; its Status is nil before
	// that.
	Registration
	connected    bool
	refusal      string
	diskPressure bool
	images       map[string]struct{}
	usedPorts    map[placement.Port]bool
	// reached: instances of other nodes are reached from it, and it takes any.
	reached bool

	seenAt time.Time
	// place in the list of deadlines; nil for a lost node.
	deadline *list.Element
}

// Registration is what a node tells of itself when it joins.
type Registration struct {
	Status *rikv1alpha1.NodeStatus
	// NoNetwork: its instances have their loopback only.
	NoNetwork bool
	// Troubles are what keeps it from serving instances, with messages.
	Troubles map[nodestate.TroubleKind]string
}

func (n *node) ready() bool { return n.unready() == "" }

// unready says why the node takes no instances; empty when it does.
func (n *node) unready() string {
	switch {
	case n.Status == nil:
		return "the node has not joined since the scheduler started"
	case !n.connected:
		return "the node is not connected"
	case n.deadline == nil:
		return "the node is not heard of"
	case n.object == nil:
		return "the controller has not admitted the node yet"
	}
	return n.refusal
}

// Connectivity is what the controller is told of a node.
type Connectivity struct {
	Name         string
	Connected    bool
	Status       *rikv1alpha1.NodeStatus
	DiskPressure bool
	NoNetwork    bool
	// Troubles are what the node told of last, with messages.
	Troubles map[nodestate.TroubleKind]string
}

// SetNode takes over the controller's object of a node. A node that has never
// been heard of gets a whole timeout from now to show itself.
func (v *Inventory) SetNode(object *rikv1alpha1.Node, now time.Time) {
	n := v.node(object.Name, now)
	n.object, n.listing = object, v.listing
	v.publish(n)
}

// RemoveNode forgets the controller's object of a node. What is placed there
// stays until it is removed itself.
func (v *Inventory) RemoveNode(name string) {
	n := v.nodes[name]
	if n == nil {
		return
	}
	n.object = nil
	v.publish(n)
	v.dropNode(n)
}

// NodeUID is that of the controller's object of a node, if there is one.
func (v *Inventory) NodeUID(name string) (uid types.UID, exists bool) {
	n := v.nodes[name]
	if n == nil || n.object == nil {
		return "", false
	}
	return n.object.UID, true
}

// NodeObject is the controller's object of a node; nil if there is none.
func (v *Inventory) NodeObject(name string) *rikv1alpha1.Node {
	if n := v.nodes[name]; n != nil {
		return n.object
	}
	return nil
}

// NodeAnnotation is that of the controller's object of a node; empty if there is none.
func (v *Inventory) NodeAnnotation(name, key string) string {
	n := v.nodes[name]
	if n == nil || n.object == nil {
		return ""
	}
	return n.object.Annotations[key]
}

// Join notes that a node is connected and what it told of itself. A refusal
// keeps instances away from it although it is connected.
func (v *Inventory) Join(name string, r Registration, refusal string, now time.Time) {
	n := v.node(name, now)
	n.Registration, n.connected, n.refusal = r, true, refusal
	v.Seen(name, now)
	v.publish(n)
}

// SetRefusal says why a node that has joined is given nothing; empty when there
// is no reason.
func (v *Inventory) SetRefusal(name, refusal string) {
	n := v.nodes[name]
	if n == nil || n.refusal == refusal {
		return
	}
	n.refusal = refusal
	v.publish(n)
}

// Leave notes that a node's connection is gone. Its deadline runs on, unless the
// controller has no such node: then it is forgotten.
func (v *Inventory) Leave(name string) {
	n := v.nodes[name]
	if n == nil || !n.connected {
		return
	}
	n.connected = false
	v.publish(n)
	v.dropNode(n)
}

// Seen moves a node's deadline. It says whether the node counted as lost.
func (v *Inventory) Seen(name string, now time.Time) (wasLost bool) {
	n := v.nodes[name]
	if n == nil {
		return false
	}
	n.seenAt = now
	if n.deadline != nil {
		v.seen.MoveToBack(n.deadline)
		return false
	}
	n.deadline = v.seen.PushBack(n)
	v.publish(n)
	return true
}

// SetDiskPressure says whether that is news.
func (v *Inventory) SetDiskPressure(name string, pressure bool) bool {
	n := v.nodes[name]
	if n == nil || n.diskPressure == pressure {
		return false
	}
	n.diskPressure = pressure
	v.publish(n)
	return true
}

// SetImages replaces the list of images that a node has.
func (v *Inventory) SetImages(name string, images []string) {
	n := v.nodes[name]
	if n == nil {
		return
	}
	n.images = make(map[string]struct{}, len(images))
	for _, image := range images {
		n.images[image] = struct{}{}
	}
	v.publish(n)
}

// SetTroubles notes what keeps a node from serving instances, and says whether that is news.
func (v *Inventory) SetTroubles(name string, all map[nodestate.TroubleKind]string) bool {
	n := v.nodes[name]
	if n == nil || maps.Equal(all, n.Troubles) {
		return false
	}
	n.Troubles = all
	v.publish(n)
	return true
}

// SetUsedPorts replaces the list of ports that processes of a node's machine
// hold.
func (v *Inventory) SetUsedPorts(name string, used map[placement.Port]bool) {
	n := v.nodes[name]
	if n == nil || maps.Equal(used, n.usedPorts) {
		return
	}
	n.usedPorts = used
	v.publish(n)
}

// Expire returns the nodes whose deadline has passed. Each is returned once,
// until it is heard of again.
func (v *Inventory) Expire(now time.Time) (lost []string) {
	for {
		front := v.seen.Front()
		if front == nil {
			return lost
		}
		n := front.Value.(*node)
		if now.Sub(n.seenAt) < v.options.NodeTimeout {
			return lost
		}
		v.seen.Remove(front)
		n.deadline = nil
		lost = append(lost, n.name)
		v.publish(n)
		v.dropNode(n)
	}
}

// NextDeadline is when the next node is lost unless it is heard of.
func (v *Inventory) NextDeadline() (time.Time, bool) {
	front := v.seen.Front()
	if front == nil {
		return time.Time{}, false
	}
	return front.Value.(*node).seenAt.Add(v.options.NodeTimeout), true
}

// Connectivities lists, by name, every node that has joined or that is lost:
// what a controller that has just synced must know. A node that has neither
// joined nor passed its deadline is left out, for nothing is known of it yet.
func (v *Inventory) Connectivities() []Connectivity {
	var out []Connectivity
	for _, name := range slices.Sorted(maps.Keys(v.nodes)) {
		n := v.nodes[name]
		if n.Status != nil || n.deadline == nil {
			out = append(out, n.connectivity())
		}
	}
	return out
}

// Connectivity is what is known of one node's connection.
func (v *Inventory) Connectivity(name string) Connectivity {
	if n := v.nodes[name]; n != nil {
		return n.connectivity()
	}
	return Connectivity{Name: name}
}

func (n *node) connectivity() Connectivity {
	return Connectivity{
		Name: n.name, Connected: n.deadline != nil && n.Status != nil, Status: n.Status, DiskPressure: n.diskPressure,
		NoNetwork: n.NoNetwork, Troubles: n.Troubles,
	}
}

func (v *Inventory) node(name string, now time.Time) *node {
	n := v.nodes[name]
	if n == nil {
		n = &node{name: name, seenAt: now}
		n.deadline = v.seen.PushBack(n)
		v.nodes[name] = n
	}
	return n
}

// dropNode forgets a node of which neither the controller nor a connection
// speaks. Before the listing is complete the controller may yet speak of it, and
// then it is to count as heard of: it stays until its deadline.
func (v *Inventory) dropNode(n *node) {
	if n.object != nil || n.connected || n.deadline != nil && !v.synced {
		return
	}
	if n.deadline != nil {
		v.seen.Remove(n.deadline)
	}
	delete(v.nodes, n.name)
	v.snapshot.RemoveNode(n.name)
}

// publish brings a node into the snapshot as it now is, and others when what is wrong with
// them counts by it.
func (v *Inventory) publish(n *node) {
	before := v.reached > 0
	if n.reached {
		v.reached--
	}
	if n.reached = n.isReached(); n.reached {
		v.reached++
	}
	v.publishOne(n)
	if before == (v.reached > 0) {
		return
	}
	for _, other := range v.nodes {
		if other != n && other.Troubles[nodestate.TroubleOverlay] != "" {
			v.publishOne(other)
		}
	}
}

// isReached says whether the node is one where instances go rather than to nodes that packets
// of others do not reach.
func (n *node) isReached() bool {
	for _, kind := range []nodestate.TroubleKind{nodestate.TroubleNetwork, nodestate.TroubleNames, nodestate.TroubleOverlay} {
		if n.Troubles[kind] != "" {
			return false
		}
	}
	if !n.ready() || n.NoNetwork || n.object.Spec.Unschedulable {
		return false
	}
	return !slices.ContainsFunc(n.object.Spec.Taints, func(t rikv1alpha1.Taint) bool { return t.Effect != rikv1alpha1.TaintPreferNoSchedule })
}

// networkTrouble keeps instances away. Packets that do not pass do so only while another node
// is reached: else nothing could be placed at all, as in a cluster of two.
func (v *Inventory) networkTrouble(n *node) string {
	trouble := cmp.Or(n.Troubles[nodestate.TroubleNetwork], n.Troubles[nodestate.TroubleNames])
	if trouble == "" && v.reached > 0 {
		trouble = n.Troubles[nodestate.TroubleOverlay]
	}
	return trouble
}

func (v *Inventory) publishOne(n *node) {
	v.improved = true
	if n.object == nil && n.Status == nil {
		v.snapshot.RemoveNode(n.name)
		return
	}
	p := placement.Node{
		Name: n.name, NotReady: n.unready(), DiskPressure: n.diskPressure, Images: n.images, UsedPorts: n.usedPorts,
	}
	p.NetworkTrouble = v.networkTrouble(n)
	p.Ready, p.NoNetwork = p.NotReady == "", n.NoNetwork
	if n.object != nil {
		p.Labels, p.Taints, p.Unschedulable = n.object.Labels, n.object.Spec.Taints, n.object.Spec.Unschedulable
	}
	if n.Status != nil {
		p.Allocatable = placement.AllocatableOf(n.Status.Allocatable)
		p.Kinds, p.Runtimes = n.Status.Info.Kinds, n.Status.Info.Runtimes
		if n.object != nil && !n.NoNetwork {
			p.Allocatable.Instances = min(p.Allocatable.Instances, addresses(n.object.Spec.PodCIDR))
		}
	}
	v.snapshot.SetNode(p)
	if !p.Ready {
		v.abandonNominations(n.name)
	}
}

// addresses is how many instances a node's range has an address for. An instance that
// found none would wait there for one, and not go where there are some.
func addresses(podCIDR string) int64 {
	prefix, err := netip.ParsePrefix(podCIDR)
	if err != nil || !prefix.Addr().Is4() {
		return math.MaxInt64 // there is none yet
	}
	// The range itself, the node in it, and its broadcast address are nobody's.
	return max(0, int64(1)<<(prefix.Addr().BitLen()-prefix.Bits())-3)
}
