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

// node is the inventory's state of one node. object comes from the controller, Registration
// from the node itself.
type node struct {
	name    string
	object  *rikv1alpha1.Node
	listing uint64

	// Registration is what the node sent when it joined. Its Status is nil before that.
	Registration
	connected    bool
	refusal      string
	diskPressure bool
	images       map[string]struct{}
	usedPorts    map[placement.Port]bool
	// reached means that packets of other nodes arrive at this node, and that it accepts any
	// instance.
	reached bool

	seenAt time.Time
	// deadline is the element in the list of deadlines. It is nil for a lost node.
	deadline *list.Element
}

// Registration is what a node sends when it joins.
type Registration struct {
	Status *rikv1alpha1.NodeStatus
	// NoNetwork means that the node's instances have only their loopback.
	NoNetwork bool
	// Troubles maps the kinds of trouble that keep the node from serving instances to messages.
	Troubles map[nodestate.TroubleKind]string
}

func (n *node) ready() bool { return n.unready() == "" }

// unready says why the node accepts no instances. It is empty if it accepts them.
func (n *node) unready() string {
	switch {
	case n.Status == nil:
		return "the node has not connected since the scheduler started"
	case !n.connected:
		return "the node is not connected"
	case n.deadline == nil:
		return "the node has not reported for longer than --node-timeout"
	case n.object == nil:
		return "the controller has not admitted the node yet"
	case n.Troubles[nodestate.TroubleController] != "":
		return "the controller refuses the node: " + n.Troubles[nodestate.TroubleController]
	}
	return n.refusal
}

// Connectivity is the state of a node that is reported to the controller.
type Connectivity struct {
	Name         string
	Connected    bool
	DiskPressure bool
	NoNetwork    bool
	// Troubles maps the kinds of trouble that the node reported last to messages.
	Troubles map[nodestate.TroubleKind]string
}

// SetNode sets the controller's object of a node. A node that has never sent a message gets a
// full timeout from now.
func (v *Inventory) SetNode(object *rikv1alpha1.Node, now time.Time) {
	n := v.node(object.Name, now)
	n.object, n.listing = object, v.listing
	v.publish(n)
}

// RemoveNode removes the controller's object of a node. Instances on the node stay until they
// are removed.
func (v *Inventory) RemoveNode(name string) {
	n := v.nodes[name]
	if n == nil {
		return
	}
	n.object = nil
	v.publish(n)
	v.dropNode(n)
}

// NodeUID returns the UID of the controller's object of a node, if there is one.
func (v *Inventory) NodeUID(name string) (uid types.UID, exists bool) {
	n := v.nodes[name]
	if n == nil || n.object == nil {
		return "", false
	}
	return n.object.UID, true
}

// NodeObject returns the controller's object of a node, or nil.
func (v *Inventory) NodeObject(name string) *rikv1alpha1.Node {
	if n := v.nodes[name]; n != nil {
		return n.object
	}
	return nil
}

// NodeAnnotation returns an annotation of the controller's object of a node. It is empty if
// there is no object.
func (v *Inventory) NodeAnnotation(name, key string) string {
	n := v.nodes[name]
	if n == nil || n.object == nil {
		return ""
	}
	return n.object.Annotations[key]
}

// Join records that a node is connected, with its registration. A refusal keeps instances off
// the node although it is connected.
func (v *Inventory) Join(name string, r Registration, refusal string, now time.Time) {
	n := v.node(name, now)
	n.Registration, n.connected, n.refusal = r, true, refusal
	v.Seen(name, now)
	v.publish(n)
}

// SetRefusal sets the reason why a node that has joined gets no instances. An empty reason
// lifts the refusal.
func (v *Inventory) SetRefusal(name, refusal string) {
	n := v.nodes[name]
	if n == nil || n.refusal == refusal {
		return
	}
	n.refusal = refusal
	v.publish(n)
}

// Leave records that a node has disconnected. Its deadline continues. If the controller has no
// such node, the node is removed.
func (v *Inventory) Leave(name string) {
	n := v.nodes[name]
	if n == nil || !n.connected {
		return
	}
	n.connected = false
	v.publish(n)
	v.dropNode(n)
}

// Seen records a message of a node and moves its deadline. It reports whether the node was
// lost.
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

// SetDiskPressure sets a node's disk pressure and reports whether it changed.
func (v *Inventory) SetDiskPressure(name string, pressure bool) bool {
	n := v.nodes[name]
	if n == nil || n.diskPressure == pressure {
		return false
	}
	n.diskPressure = pressure
	v.publish(n)
	return true
}

// SetImages replaces the list of images on a node.
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

// SetTroubles sets the troubles of a node and reports whether they changed.
func (v *Inventory) SetTroubles(name string, all map[nodestate.TroubleKind]string) bool {
	n := v.nodes[name]
	if n == nil || maps.Equal(all, n.Troubles) {
		return false
	}
	n.Troubles = all
	v.publish(n)
	return true
}

// SetUsedPorts replaces the list of ports that processes of a node's machine use.
func (v *Inventory) SetUsedPorts(name string, used map[placement.Port]bool) {
	n := v.nodes[name]
	if n == nil || maps.Equal(used, n.usedPorts) {
		return
	}
	n.usedPorts = used
	v.publish(n)
}

// Expire returns the nodes whose deadline has passed. It returns each once, until the node
// sends a message again.
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

// NextDeadline returns when the next node is lost if it sends no message.
func (v *Inventory) NextDeadline() (time.Time, bool) {
	front := v.seen.Front()
	if front == nil {
		return time.Time{}, false
	}
	return front.Value.(*node).seenAt.Add(v.options.NodeTimeout), true
}

// Connectivities returns, by name, every node that has joined or that is lost. A controller
// needs this after its listing. A node that has not joined and whose deadline has not passed is
// omitted, because its state is not yet certain.
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

// Connectivity returns the state of one node's connection.
func (v *Inventory) Connectivity(name string) Connectivity {
	if n := v.nodes[name]; n != nil {
		return n.connectivity()
	}
	return Connectivity{Name: name}
}

func (n *node) connectivity() Connectivity {
	return Connectivity{
		Name: n.name, Connected: n.deadline != nil && n.Status != nil, DiskPressure: n.diskPressure,
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

// dropNode removes a node that has neither a Node nor a connection. Before the listing is
// complete, the controller may still list it. The node then counts as seen, so it stays until
// its deadline.
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

// publish updates a node in the snapshot. It also updates other nodes whose overlay trouble
// counts only while a node is reached.
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

// isReached reports whether instances should go to this node instead of nodes that packets of
// other nodes do not reach.
func (n *node) isReached() bool {
	for _, kind := range []nodestate.TroubleKind{nodestate.TroubleNetwork, nodestate.TroubleNames, nodestate.TroubleNamesBlocked, nodestate.TroubleOverlay} {
		if n.Troubles[kind] != "" {
			return false
		}
	}
	if !n.ready() || n.NoNetwork || n.object.Spec.Unschedulable {
		return false
	}
	return !slices.ContainsFunc(n.object.Spec.Taints, func(t rikv1alpha1.Taint) bool { return t.Effect != rikv1alpha1.TaintPreferNoSchedule })
}

// networkTrouble returns the trouble that keeps instances off the node. Overlay trouble counts
// only while another node is reached. Otherwise no instance could be placed, such as in a
// cluster of two nodes.
func (v *Inventory) networkTrouble(n *node) string {
	trouble := cmp.Or(n.Troubles[nodestate.TroubleNetwork], n.Troubles[nodestate.TroubleNames], n.Troubles[nodestate.TroubleNamesBlocked])
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

// addresses returns the number of instances for which a node's range has addresses. Without
// this limit, instances could wait on a node without free addresses instead of using another
// node.
func addresses(podCIDR string) int64 {
	prefix, err := netip.ParsePrefix(podCIDR)
	if err != nil || !prefix.Addr().Is4() {
		return math.MaxInt64 // not assigned yet
	}
	// The range's own address, the node's address and the broadcast address are not for
	// instances.
	return max(0, int64(1)<<(prefix.Addr().BitLen()-prefix.Bits())-3)
}
