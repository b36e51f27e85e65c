package inventory

import (
	"maps"
	"slices"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/scheduler/placement"
)

// State is where an instance is on its way to a node.
type State uint8

const (
	// Pending is without a node.
	Pending State = iota
	// Proposed has a node in a proposal, which holds its resources.
	Proposed
	// Bound has a node for good: the binding is durable.
	Bound
)

// Instance is what the scheduler knows of an instance. Callers of Inventory
// read it and change only Stop.
type Instance struct {
	UID, Namespace, Name, Workload, Revision string

	CreatedUnixNano int64

	State State
	// Node that it is bound or proposed to.
	Node string
	// Ended: it holds no resources, but its node may remember it.
	Ended bool
	// Stop is the order to take it away, until its node confirms.
	Stop *Stop

	labels  map[string]string
	listing uint64
	group   *group // nil while its template is not known
	heap    int    // index in the group's queue; -1 when not waiting
	sent    string // the explanation that was reported last
}

// Stop is an order to take an instance away.
type Stop struct {
	// GraceSeconds is negative for what the template says.
	GraceSeconds int64
	Force        bool
}

// Facts are what a controller tells of an instance.
type Facts struct {
	UID, Namespace, Name, Workload, Revision string

	Labels          map[string]string
	CreatedUnixNano int64
	// Node and Ended only for SetBound.
	Node  string
	Ended bool
}

// revision is a template and the shapes of the instances that were made of it.
type revision struct {
	name      string
	listing   uint64
	template  *rikv1alpha1.InstanceTemplate
	forgotten bool
	groups    []*group
	// waiting instances for which the template has not come.
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

// tidy drops what no instance uses any more.
func (v *Inventory) tidy(r *revision) {
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

// Instance finds an instance by its UID; nil when it is not known.
func (v *Inventory) Instance(uid string) *Instance { return v.instances[uid] }

// OnNode lists the instances bound to a node, by UID.
func (v *Inventory) OnNode(name string) []*Instance {
	bound := v.onNode[name]
	out := make([]*Instance, 0, len(bound))
	for _, uid := range slices.Sorted(maps.Keys(bound)) {
		out = append(out, bound[uid])
	}
	return out
}

// SetPending queues an instance for placement. It changes nothing for one that
// is known already, unless a listing says that it lost its place.
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

// SetBound notes where an instance is, and whether it has ended. It says
// whether that is news, in which case its node is to be told.
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

// Ack answers a proposal. When the binding is durable the instance is bound and
// returned, to be dispatched; otherwise its resources are free again and the
// instance is forgotten: it is gone, or the controller will say where it is. An
// acknowledgement of something else than a proposal returns nil.
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

// SetStop asks for an instance to be taken away. One that has no place yet is
// not placed any more.
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

// End notes that nothing of a bound instance is left on its node: it holds no
// resources, and need not be stopped any more.
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

// Remove forgets an instance and frees all that it held. It returns the
// instance as it was; nil for an unknown one.
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
	v.tidy(r)
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

// admit gives an instance its group and then its place: in the queue, or in the
// snapshot. Without its template it waits for that.
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

// groupFor finds or makes the group of instances that are placed alike. All
// instances of a revision are, unless someone changed the labels of one.
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

// put takes resources for an instance.
func (v *Inventory) put(in *Instance, node string) {
	v.snapshot.Put(placement.Occupant{
		UID: in.UID, Shape: in.group.shape, Node: node, CreatedUnixNano: in.CreatedUnixNano,
	})
	v.queue.unblockDependents()
}

// remember notes which node an instance is bound to.
func (v *Inventory) remember(in *Instance) {
	bound := v.onNode[in.Node]
	if bound == nil {
		bound = map[string]*Instance{}
		v.onNode[in.Node] = bound
	}
	bound[in.UID] = in
}

// unplace frees what an instance holds and makes it Pending, outside the queue.
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

// unpropose voids a proposal and queues the instance again.
func (v *Inventory) unpropose(in *Instance) {
	v.unplace(in)
	v.admit(in)
}

// withdraw takes an instance out of the queue.
func (v *Inventory) withdraw(in *Instance) {
	v.dropNomination(in.UID)
	v.queue.remove(in)
}

// countPriority keeps the priorities in use, so that preemption is tried only
// where something less important exists.
func (v *Inventory) countPriority(g *group, n int) {
	if g.shape == nil {
		return
	}
	p := g.shape.Priority()
	if v.priorities[p] += n; v.priorities[p] == 0 {
		delete(v.priorities, p)
	}
}
