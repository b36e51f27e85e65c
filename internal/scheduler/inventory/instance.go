package inventory

import (
	"maps"
	"slices"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/scheduler/placement"
)

// State is the placement state of an instance.
type State uint8

const (
	// Pending means that the instance has no node.
	Pending State = iota
	// Proposed means that a proposal names a node and holds its resources.
	Proposed
	// Bound means that the binding is durable. The node does not change.
	Bound
)

// Instance is the inventory's state of an instance. Callers of Inventory may read it and change
// only Stop.
type Instance struct {
	UID, Namespace, Name, Workload, Revision string

	CreatedUnixNano int64

	State State
	// Node is the node to which the instance is bound or proposed.
	Node string
	// Ended means that the instance holds no resources. Its node may still have a record of it.
	Ended bool
	// Stop is the stop request for the instance, until its node confirms.
	Stop *Stop

	labels  map[string]string
	listing uint64
	group   *group // nil until its template has arrived
	heap    int    // index in the group's queue; -1 if not waiting
	sent    string // the explanation that was reported last
}

// Stop is a request to stop an instance.
type Stop struct {
	// GraceSeconds is the grace period. A negative value means that of the template.
	GraceSeconds int64
	Force        bool
}

// Facts are the fields of an instance that a controller sends.
type Facts struct {
	UID, Namespace, Name, Workload, Revision string

	Labels          map[string]string
	CreatedUnixNano int64
	// Node and Ended are used only by SetBound.
	Node  string
	Ended bool
}

// revision is a template and the shapes of its instances.
type revision struct {
	name      string
	listing   uint64
	template  *rikv1alpha1.InstanceTemplate
	forgotten bool
	groups    []*group
	// waiting holds the instances that wait for the template to arrive.
	waiting []*Instance
}

func (v *Inventory) revision(name string) *revision {
	r := v.revisions[name]
	if r == nil {
		r = &revision{name: name}
		v.revisions[name] = r
	}
	return r
}

// dropUnused drops the parts of a revision that no instance uses.
func (v *Inventory) dropUnused(r *revision) {
	r.groups = slices.DeleteFunc(r.groups, func(g *group) bool {
		if g.members > 0 || !r.forgotten {
			return false
		}
		if g.shape != nil {
			v.snapshot.Forget(g.shape)
		}
		return true
	})
	if r.forgotten && len(r.groups) == 0 && len(r.waiting) == 0 {
		delete(v.revisions, r.name)
	}
}

// Instance returns the instance with a UID, or nil.
func (v *Inventory) Instance(uid string) *Instance { return v.instances[uid] }

// OnNode returns the instances bound to a node, sorted by UID.
func (v *Inventory) OnNode(name string) []*Instance {
	bound := v.onNode[name]
	out := make([]*Instance, 0, len(bound))
	for _, uid := range slices.Sorted(maps.Keys(bound)) {
		out = append(out, bound[uid])
	}
	return out
}

// SetPending queues an instance for placement. It does not change an instance that is already
// in the inventory, unless a listing reports a bound instance as pending.
func (v *Inventory) SetPending(f Facts) {
	in := v.instances[f.UID]
	if in == nil {
		v.admit(v.add(f))
		return
	}
	in.listing = v.listing
	if in.State == Bound && !v.synced {
		v.unplace(in)
		v.admit(in)
	}
}

// SetBound records the node of an instance, and whether the instance has ended. news reports
// whether that is a change. Then the node must be sent an order.
func (v *Inventory) SetBound(f Facts) (in *Instance, news bool) {
	in = v.instances[f.UID]
	if in == nil {
		in = v.add(f)
	}
	in.listing = v.listing
	if in.State == Bound && in.Node == f.Node && in.Ended == f.Ended {
		return in, false
	}
	v.withdraw(in)
	v.unplace(in)
	in.State, in.Node, in.Ended = Bound, f.Node, f.Ended
	v.remember(in)
	v.admit(in)
	return in, true
}

// Ack handles the answer to a proposal. If the binding is durable, the instance is bound and
// returned, to be dispatched. Otherwise its resources are freed and the instance is removed: it
// was deleted, or the controller will send its node. An acknowledgment of an instance that is
// not proposed returns nil.
func (v *Inventory) Ack(uid string, durable bool) *Instance {
	in := v.instances[uid]
	if in == nil || in.State != Proposed {
		return nil
	}
	if !durable {
		v.Remove(uid)
		return nil
	}
	v.proposed--
	in.State = Bound
	v.remember(in)
	return in
}

// SetStop requests that an instance be stopped. A pending instance is no longer placed.
func (v *Inventory) SetStop(uid string, stop Stop) *Instance {
	in := v.instances[uid]
	if in == nil {
		return nil
	}
	in.Stop = &stop
	if in.State == Pending {
		v.withdraw(in)
	}
	return in
}

// End records that no part of a bound instance is left on its node. The instance holds no
// resources and need not be stopped any more.
func (v *Inventory) End(uid string) {
	in := v.instances[uid]
	if in == nil || in.State != Bound {
		return
	}
	node := in.Node
	v.unplace(in)
	in.State, in.Node, in.Ended, in.Stop = Bound, node, true, nil
	v.remember(in)
}

// Remove removes an instance and frees its resources. It returns a copy of the instance from
// before, or nil if there was none.
func (v *Inventory) Remove(uid string) *Instance {
	in := v.instances[uid]
	if in == nil {
		return nil
	}
	was := *in
	v.withdraw(in)
	v.unplace(in)
	delete(v.instances, uid)
	r := v.revision(in.Namespace + "/" + in.Revision)
	r.waiting = slices.DeleteFunc(r.waiting, func(o *Instance) bool { return o == in })
	if in.group != nil {
		in.group.members--
		v.countPriority(in.group, -1)
	}
	v.dropUnused(r)
	return &was
}

func (v *Inventory) add(f Facts) *Instance {
	in := &Instance{
		UID: f.UID, Namespace: f.Namespace, Name: f.Name, Workload: f.Workload, Revision: f.Revision,
		CreatedUnixNano: f.CreatedUnixNano, labels: f.Labels, listing: v.listing, heap: -1,
	}
	v.instances[f.UID] = in
	return in
}

// admit assigns an instance to its group, and then to the queue or the snapshot. An instance
// without its template waits for the template.
func (v *Inventory) admit(in *Instance) {
	if in.group == nil {
		r := v.revision(in.Namespace + "/" + in.Revision)
		if r.template == nil {
			if !slices.Contains(r.waiting, in) {
				r.waiting = append(r.waiting, in)
			}
			return
		}
		in.group = v.groupFor(r, in)
		in.group.members++
		v.countPriority(in.group, 1)
	}
	switch {
	case in.State == Pending && in.Stop == nil:
		v.queue.push(in)
	case in.State == Bound && !in.Ended && in.group.shape != nil:
		v.put(in, in.Node)
	}
}

// groupFor returns the group of instances with the same placement rules. It creates the group
// if necessary. All instances of a revision are in one group, unless the labels of one were
// changed.
func (v *Inventory) groupFor(r *revision, in *Instance) *group {
	for _, g := range r.groups {
		if g.workload == in.Workload && maps.Equal(g.labels, in.labels) {
			return g
		}
	}
	g := &group{workload: in.Workload, labels: in.labels, index: -1}
	g.shape, g.invalid = placement.NewShape(placement.ShapeConfig{
		Namespace: in.Namespace, Workload: in.Workload, Labels: in.labels, Template: r.template,
	})
	r.groups = append(r.groups, g)
	return g
}

// put reserves resources for an instance.
func (v *Inventory) put(in *Instance, node string) {
	v.snapshot.Put(placement.Occupant{
		UID: in.UID, Shape: in.group.shape, Node: node, CreatedUnixNano: in.CreatedUnixNano,
	})
	v.queue.unblockDependents()
}

// remember records the node to which an instance is bound.
func (v *Inventory) remember(in *Instance) {
	bound := v.onNode[in.Node]
	if bound == nil {
		bound = map[string]*Instance{}
		v.onNode[in.Node] = bound
	}
	bound[in.UID] = in
}

// unplace frees the resources of an instance and makes it Pending, outside the queue.
func (v *Inventory) unplace(in *Instance) {
	switch in.State {
	case Proposed:
		v.proposed--
	case Bound:
		delete(v.onNode[in.Node], in.UID)
		if len(v.onNode[in.Node]) == 0 {
			delete(v.onNode, in.Node)
		}
	}
	if node, held := v.snapshot.Where(in.UID); held {
		v.snapshot.Remove(in.UID)
		v.freed[node] = struct{}{}
		v.victimGone(in.UID)
	}
	in.State, in.Node, in.Ended = Pending, "", false
}

// unpropose cancels a proposal and queues the instance again.
func (v *Inventory) unpropose(in *Instance) {
	v.unplace(in)
	v.admit(in)
}

// withdraw removes an instance from the queue.
func (v *Inventory) withdraw(in *Instance) {
	v.dropNomination(in.UID)
	v.queue.remove(in)
}

// countPriority counts the instances of each priority, so that preemption is tried only if an
// instance of lower priority exists.
func (v *Inventory) countPriority(g *group, n int) {
	if g.shape == nil {
		return
	}
	p := g.shape.Priority()
	if v.priorities[p] += n; v.priorities[p] == 0 {
		delete(v.priorities, p)
	}
}
