// Package inventory holds what the scheduler knows of a cluster, all of it in
// memory: the nodes with what they reported and when they were last heard of,
// the instances with their places, and those that wait for one. It keeps a
// placement.Snapshot in step with that and chooses what is placed next.
//
// It does no I/O, starts nothing and reads no clock: times are arguments. It is
// not safe for concurrent use; internal/scheduler guards it.
//
// After a restart it is empty and is rebuilt by the controller (Begin, the
// listing, Synced) and by the nodes (Join). Nothing is placed before Synced; a
// node gets instances only once it has joined itself and the controller knows
// it; and the deadline of every node starts anew, so a dead node holds up
// nobody.
package inventory

import (
	"container/list"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/scheduler/placement"
)

// Options of an Inventory.
type Options struct {
	Placement placement.Options
	// NodeTimeout is the time without a word after which a node counts as lost.
	NodeTimeout time.Duration
}

// Inventory is what the scheduler knows. Its owner must not use it from two
// goroutines at once.
type Inventory struct {
	options  Options
	snapshot *placement.Snapshot

	// listing is the number of the controller's present listing, and synced
	// whether it is complete.
	listing uint64
	synced  bool

	nodes map[string]*node
	// reached counts the nodes that are.
	reached int
	// seen orders nodes by when they were last heard of, the longest ago first;
	// lost ones are not in it.
	seen list.List

	revisions map[string]*revision
	instances map[string]*Instance
	onNode    map[string]map[string]*Instance

	queue      queue
	priorities map[int32]int
	nominees   map[string]*nomination
	proposed   int
	// improved is set when something happened that can make any blocked group
	// fit; freed lists nodes that have more room and are otherwise as they were.
	improved bool
	freed    map[string]struct{}
}

// New makes an empty inventory.
func New(o Options) *Inventory {
	return &Inventory{
		options: o, snapshot: placement.NewSnapshot(o.Placement),
		nodes: map[string]*node{}, revisions: map[string]*revision{},
		instances: map[string]*Instance{}, onNode: map[string]map[string]*Instance{},
		queue: newQueue(), priorities: map[int32]int{}, freed: map[string]struct{}{}, nominees: map[string]*nomination{},
	}
}

// Begin starts a controller's listing: everything that is not named again
// before Synced is forgotten then. Proposals that no one has acknowledged are
// void, since their acknowledgement can no longer come.
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

// Synced ends the listing: what it did not name is forgotten, and placing
// begins. It returns the instances that were forgotten.
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

// Ready says whether the controller's listing is complete.
func (v *Inventory) Ready() bool { return v.synced }

// Interrupt notes that the controller is gone: nothing is placed until the next
// listing is complete.
func (v *Inventory) Interrupt() { v.synced = false }

// Stats counts what the inventory holds.
type Stats struct {
	Nodes, ReadyNodes        int
	Pending, Proposed, Bound int
}

// Stats counts what the inventory holds.
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

// SetTemplate makes the template of a revision (namespace/name) known.
// Revisions are immutable, so a second one of the same name changes nothing.
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

// RemoveTemplate forgets a template once no instance uses it.
func (v *Inventory) RemoveTemplate(name string) {
	if r := v.revisions[name]; r != nil {
		r.forgotten = true
		v.tidy(r)
	}
}
