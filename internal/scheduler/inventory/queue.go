package inventory

import (
	"cmp"
	"container/heap"
	"time"

	"rik.dev/rik/internal/scheduler/placement"
)

// group is a set of instances with the same placement rules: those of one revision with the
// same labels. It queues the waiting instances, the oldest first.
type group struct {
	workload string
	labels   map[string]string
	shape    *placement.Shape
	// invalid says why there is no shape.
	invalid error
	members int

	waiting instanceHeap
	// index is the index in the queue of active groups. It is -1 if the group is blocked or has
	// no waiting instances.
	index   int
	blocked bool
	// reason and message are those of the last decision that found no node. sentAt is when all
	// waiting instances last received them. unsent is set while some instances may not have
	// received them. newcomers are the instances added since the group was blocked.
	reason, message string
	sentAt          time.Time
	unsent          bool
	newcomers       []*Instance
}

func (g *group) priority() int32 {
	if g.shape == nil {
		return 0
	}
	return g.shape.Priority()
}

// queue orders the groups that may fit on a node by priority, then by their oldest waiting
// instance.
type queue struct {
	active  groupHeap
	blocked map[*group]struct{}
	// dependents are the blocked groups whose instances may go where others are. unsent are the
	// blocked groups with explanations to send.
	dependents, unsent map[*group]struct{}
	// waiting counts the waiting instances in all groups, including blocked ones.
	waiting int
}

func newQueue() queue {
	return queue{
		blocked: map[*group]struct{}{}, dependents: map[*group]struct{}{}, unsent: map[*group]struct{}{},
	}
}

// push queues an instance. In a blocked group it waits with the others.
func (q *queue) push(in *Instance) {
	if in.heap >= 0 {
		return
	}
	g := in.group
	heap.Push(&g.waiting, in)
	q.waiting++
	in.sent = ""
	if g.blocked {
		g.newcomers = append(g.newcomers, in)
		q.unsent[g] = struct{}{}
		return
	}
	q.fix(g)
}

// remove removes an instance from the queue. It does nothing if the instance is not waiting.
func (q *queue) remove(in *Instance) {
	if in.heap < 0 {
		return
	}
	g := in.group
	heap.Remove(&g.waiting, in.heap)
	q.waiting--
	if len(g.waiting) == 0 && g.blocked {
		q.unblock(g)
	}
	if !g.blocked {
		q.fix(g)
	}
}

// fix corrects a group's position after its waiting instances changed.
func (q *queue) fix(g *group) {
	switch {
	case len(g.waiting) == 0 && g.index >= 0:
		heap.Remove(&q.active, g.index)
	case len(g.waiting) > 0 && g.index < 0:
		heap.Push(&q.active, g)
	case g.index >= 0:
		heap.Fix(&q.active, g.index)
	}
}

// first returns the next group to place from, or nil.
func (q *queue) first() *group {
	if len(q.active) == 0 {
		return nil
	}
	return q.active[0]
}

// block removes a group from the active groups until an event that could help.
func (q *queue) block(g *group, reason, message string) {
	g.reason, g.message, g.unsent = reason, message, true
	if g.index >= 0 {
		heap.Remove(&q.active, g.index)
	}
	g.blocked = true
	q.blocked[g] = struct{}{}
	q.unsent[g] = struct{}{}
	if g.shape != nil && g.shape.DependsOnOthers() {
		q.dependents[g] = struct{}{}
	}
}

func (q *queue) unblock(g *group) {
	g.blocked, g.newcomers = false, nil
	delete(q.blocked, g)
	delete(q.dependents, g)
	delete(q.unsent, g)
	q.fix(g)
}

// unblockDependents unblocks the groups whose instances may go where others are.
func (q *queue) unblockDependents() {
	for g := range q.dependents {
		q.unblock(g)
	}
}

// instanceHeap orders instances by age.
type instanceHeap []*Instance

func (h instanceHeap) Len() int { return len(h) }
func (h instanceHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].CreatedUnixNano, h[j].CreatedUnixNano), cmp.Compare(h[i].UID, h[j].UID)) < 0
}
func (h instanceHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i, j
}
func (h *instanceHeap) Push(x any) {
	in := x.(*Instance)
	in.heap = len(*h)
	*h = append(*h, in)
}
func (h *instanceHeap) Pop() any {
	last := len(*h) - 1
	in := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	in.heap = -1
	return in
}

// groupHeap orders groups by priority, then by their oldest waiting instance.
type groupHeap []*group

func (h groupHeap) Len() int { return len(h) }
func (h groupHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(
		cmp.Compare(b.priority(), a.priority()),
		cmp.Compare(a.waiting[0].CreatedUnixNano, b.waiting[0].CreatedUnixNano),
		cmp.Compare(a.waiting[0].UID, b.waiting[0].UID),
	) < 0
}
func (h groupHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *groupHeap) Push(x any) {
	g := x.(*group)
	g.index = len(*h)
	*h = append(*h, g)
}
func (h *groupHeap) Pop() any {
	last := len(*h) - 1
	g := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	g.index = -1
	return g
}
