// Package inventory holds the scheduler's state of a cluster in memory. It holds the nodes with
// their reports and the time of the last one, the placed instances, and the instances that wait
// for a node. It keeps a placement.Snapshot up to date and chooses which instance is placed
// next.
//
// It does no I/O, starts no goroutine and reads no clock: times are arguments. It is not safe
// for concurrent use. internal/scheduler guards it.
//
// After a restart it is empty. The controller (Begin, the listing, Synced) and the nodes (Join)
// rebuild it. Nothing is placed before Synced. A node gets instances only after it has joined
// and the controller has sent its Node. The deadline of every node starts again, so a dead node
// does not delay placement.
package inventory

import (
	"container/list"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/scheduler/placement"
)

// Options configures an Inventory.
type Options struct {
	Placement placement.Options
	// NodeTimeout is the time without a message after which a node is lost.
	NodeTimeout time.Duration
}

// Inventory is the scheduler's state of a cluster. It is not safe for concurrent use.
type Inventory struct {
	options  Options
	snapshot *placement.Snapshot

	// listing is the number of the controller's current listing. synced reports whether that
	// listing is complete.
	listing uint64
	synced  bool

	nodes map[string]*node
	// reached counts the nodes for which node.reached is true.
	reached int
	// seen orders nodes by the time of their last message, the oldest first. Lost nodes are not
	// in it.
	seen list.List

	revisions map[string]*revision
	instances map[string]*Instance
	onNode    map[string]map[string]*Instance

	queue      queue
	priorities map[int32]int
	nominees   map[string]*nomination
	proposed   int
	// improved is set after an event that can make any blocked group fit. freed holds nodes that
	// have more free resources and are otherwise unchanged.
	improved bool
	freed    map[string]struct{}
}

// New creates an empty inventory.
func New(o Options) *Inventory {
	return &Inventory{
		options: o, snapshot: placement.NewSnapshot(o.Placement),
		nodes: map[string]*node{}, revisions: map[string]*revision{},
		instances: map[string]*Instance{}, onNode: map[string]map[string]*Instance{},
		queue: newQueue(), priorities: map[int32]int{}, freed: map[string]struct{}{}, nominees: map[string]*nomination{},
	}
}

// Begin starts a controller's listing. Synced will drop everything that the listing does not
// include. Proposals without an acknowledgment are canceled, because the acknowledgment can no
// longer arrive.
func (v *Inventory) Begin() {
	v.listing++
	v.synced = false
	for uid := range v.nominees {
		v.cancelNomination(uid)
	}
	for _, in := range v.instances {
		if in.State == Proposed {
			v.unpropose(in)
		}
	}
}

// Synced ends the listing. It drops everything that the listing did not include, and starts
// placement. It returns the instances that it removed.
func (v *Inventory) Synced() (gone []*Instance) {
	for uid, in := range v.instances {
		if in.listing != v.listing {
			gone = append(gone, v.Remove(uid))
		}
	}
	v.synced, v.improved = true, true
	for name, n := range v.nodes {
		if n.object == nil || n.listing != v.listing {
			v.RemoveNode(name)
		}
	}
	for name, r := range v.revisions {
		if r.listing != v.listing {
			v.RemoveTemplate(name)
		}
	}
	return gone
}

// Ready reports whether the controller's listing is complete.
func (v *Inventory) Ready() bool { return v.synced }

// Interrupt records that the controller has disconnected. Nothing is placed until the next
// listing is complete.
func (v *Inventory) Interrupt() { v.synced = false }

// Stats holds counts of the inventory's objects.
type Stats struct {
	Nodes, ReadyNodes        int
	Pending, Proposed, Bound int
}

// Stats counts the inventory's objects.
func (v *Inventory) Stats() Stats {
	s := Stats{Nodes: len(v.nodes), Proposed: v.proposed}
	for _, n := range v.nodes {
		if n.ready() {
			s.ReadyNodes++
		}
	}
	s.Pending = v.queue.waiting + len(v.nominees)
	s.Bound = v.snapshot.Occupants() - v.proposed - len(v.nominees)
	return s
}

// SetTemplate sets the template of a revision (namespace/name). Revisions are immutable, so a
// second template of the same name changes nothing.
func (v *Inventory) SetTemplate(name string, template *rikv1alpha1.InstanceTemplate) {
	r := v.revision(name)
	r.listing = v.listing
	r.forgotten = false
	if r.template != nil {
		return
	}
	r.template = template
	waiting := r.waiting
	r.waiting = nil
	for _, in := range waiting {
		v.admit(in)
	}
}

// RemoveTemplate removes a template once no instance uses it.
func (v *Inventory) RemoveTemplate(name string) {
	if r := v.revisions[name]; r != nil {
		r.forgotten = true
		v.dropUnused(r)
	}
}
