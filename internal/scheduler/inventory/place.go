package inventory

import (
	"fmt"
	"strings"
	"time"

	"rik.dev/rik/internal/scheduler/placement"
)

const (
	// maxProposed bounds the proposals without an acknowledgment. It is far above the number of
	// writes that a controller has in flight (256), so a controller never waits for proposals. It
	// bounds the queue of a slow controller.
	maxProposed = 8192
	// explainInterval is the minimum time between two explanations to all instances that wait for
	// the same reason. The first explanation is sent at once.
	explainInterval = 5 * time.Second
)

// reservation is the prefix of an instance's UID that names the reservation for it, while its
// victims are removed.
const reservation = "reserved/"

// Result holds the decisions of a round of placement.
type Result struct {
	Bindings  []Binding
	Unplaced  []Unplaced
	Displaced []Displacement
	// More means that there is more to place at once.
	More bool
	// SendAt is when Place should be called again to send changed explanations. It is zero if
	// there are none.
	SendAt time.Time
}

// Binding is a proposal to bind an instance to a node.
type Binding struct {
	UID, Node string
	HostPorts []int32
}

// Unplaced says why an instance is waiting.
type Unplaced struct{ UID, Reason, Message string }

// Displacement names an instance to preempt and the instance that needs its place.
type Displacement struct{ UID, For string }

// nomination reserves a place for an instance of higher priority until its victims are gone.
type nomination struct {
	instance *Instance
	node     string
	victims  map[string]struct{}
}

// Place makes up to limit decisions, the highest priority first, then the oldest. An instance
// without a place waits, and is not evaluated again until an event that could help.
func (v *Inventory) Place(limit int, now time.Time) Result {
	var out Result
	if !v.synced {
		return out
	}
	v.reconsider()
	for range limit {
		g := v.queue.first()
		if g == nil || v.proposed >= maxProposed {
			break
		}
		v.placeFirst(g, &out)
	}
	v.send(now, &out)
	more := v.queue.first() != nil || (v.improved || len(v.freed) > 0) && len(v.queue.blocked) > 0
	out.More = more && v.proposed < maxProposed
	return out
}

// maxFreed bounds the nodes that are checked one by one for every blocked group. Above it, one
// more decision for each group is cheaper.
const maxFreed = 64

// reconsider unblocks those groups for which recent events could have made room.
func (v *Inventory) reconsider() {
	all := v.improved || len(v.freed) > maxFreed
	if !all && len(v.freed) == 0 {
		return
	}
	for g := range v.queue.blocked {
		if all || v.helped(g) {
			v.queue.unblock(g)
		}
	}
	v.improved = false
	clear(v.freed)
}

func (v *Inventory) helped(g *group) bool {
	if g.shape == nil {
		return false
	}
	for node := range v.freed {
		if placement.CouldHelp(v.snapshot, g.shape, node) {
			return true
		}
	}
	// An instance of higher priority may now need fewer victims.
	return v.lowerExists(g.priority())
}

// placeFirst decides for the oldest instance of a group.
func (v *Inventory) placeFirst(g *group, out *Result) {
	in := g.waiting[0]
	if g.shape == nil {
		v.queue.block(g, "InvalidTemplate", g.invalid.Error())
		return
	}
	d := placement.Place(v.snapshot, placement.Request{UID: in.UID, Shape: g.shape})
	if d.Node == "" {
		if !v.preempt(in, out) {
			v.queue.block(g, d.Reason, d.Message)
		}
		return
	}
	v.queue.remove(in)
	in.State, in.Node = Proposed, d.Node
	v.proposed++
	v.put(in, d.Node)
	out.Bindings = append(out.Bindings, Binding{UID: in.UID, Node: d.Node, HostPorts: d.HostPorts})
}

// send adds explanations that have not been sent to the result.
func (v *Inventory) send(now time.Time, out *Result) {
	for g := range v.queue.unsent {
		due := g.sentAt.Add(explainInterval)
		switch {
		case g.unsent && (g.sentAt.IsZero() || !now.Before(due)):
			g.unsent, g.newcomers, g.sentAt = false, nil, now
			for _, in := range g.waiting {
				out.send(in, g)
			}
		case g.unsent && (out.SendAt.IsZero() || due.Before(out.SendAt)):
			out.SendAt = due
		}
		for _, in := range g.newcomers {
			if in.heap >= 0 {
				out.send(in, g)
			}
		}
		g.newcomers = nil
		if !g.unsent {
			delete(v.queue.unsent, g)
		}
	}
}

func (out *Result) send(in *Instance, g *group) {
	if in.sent == g.message {
		return
	}
	in.sent = g.message
	out.Unplaced = append(out.Unplaced, Unplaced{UID: in.UID, Reason: g.reason, Message: g.message})
}

// preempt finds instances of lower priority whose removal would make room. It requests their
// removal and reserves the place.
func (v *Inventory) preempt(in *Instance, out *Result) bool {
	if !v.lowerExists(in.group.priority()) {
		return false
	}
	p, ok := placement.Preempt(v.snapshot, placement.Request{UID: in.UID, Shape: in.group.shape})
	if !ok {
		return false
	}
	v.queue.remove(in)
	n := &nomination{instance: in, node: p.Node, victims: map[string]struct{}{}}
	v.nominees[in.UID] = n
	for _, uid := range p.Victims {
		if nominee, held := strings.CutPrefix(uid, reservation); held {
			v.cancelNomination(nominee)
			continue
		}
		n.victims[uid] = struct{}{}
		if victim := v.instances[uid]; victim.Stop == nil {
			out.Displaced = append(out.Displaced, Displacement{UID: uid, For: in.UID})
		}
	}
	v.snapshot.Put(placement.Occupant{
		UID: reservation + in.UID, Shape: in.group.shape, Node: p.Node, CreatedUnixNano: in.CreatedUnixNano,
	})
	if len(n.victims) == 0 {
		v.cancelNomination(in.UID)
	}
	return true
}

func (v *Inventory) lowerExists(priority int32) bool {
	for p := range v.priorities {
		if p < priority {
			return true
		}
	}
	return false
}

// victimGone removes an instance from the victims of each nomination. A nomination without
// further victims ends, and its instance is queued again.
func (v *Inventory) victimGone(uid string) {
	for nominee, n := range v.nominees {
		if _, ok := n.victims[uid]; !ok {
			continue
		}
		if delete(n.victims, uid); len(n.victims) == 0 {
			v.cancelNomination(nominee)
		}
	}
}

// abandonNominations cancels the reservations on a node that no longer accepts instances.
func (v *Inventory) abandonNominations(node string) {
	for uid, n := range v.nominees {
		if n.node == node {
			v.cancelNomination(uid)
		}
	}
}

// cancelNomination cancels a reservation and queues the instance again.
func (v *Inventory) cancelNomination(uid string) {
	if n := v.dropNomination(uid); n != nil {
		v.queue.push(n.instance)
	}
}

func (v *Inventory) dropNomination(uid string) *nomination {
	n := v.nominees[uid]
	if n == nil {
		return nil
	}
	delete(v.nominees, uid)
	v.snapshot.Remove(reservation + uid)
	v.improved = true
	return n
}

// Explain returns where an instance is or would be placed, with the result of every filter for
// every node. ok is false for an unknown instance.
func (v *Inventory) Explain(uid string) (e placement.Explanation, ok bool) {
	in := v.instances[uid]
	if in == nil {
		return e, false
	}
	if in.group == nil {
		e.Summary = "the revision " + in.Namespace + "/" + in.Revision + " has not arrived from the controller"
		return e, true
	}
	if in.group.shape == nil {
		e.Summary = in.group.invalid.Error()
		return e, true
	}
	e = placement.Explain(v.snapshot, placement.Request{UID: uid, Shape: in.group.shape})
	if n := v.nominees[uid]; n != nil {
		e.Summary = fmt.Sprintf("waiting for %d instances of lower priority to leave %s", len(n.victims), n.node)
	}
	if in.State != Pending {
		e.Node = in.Node
		e.Summary = fmt.Sprintf("bound to %s", in.Node)
	}
	return e, true
}
