package scheduler

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/scheduler/validate"
)

// maxDeletedNodes bounds how many deleted Nodes the scheduler remembers. The controller sends
// fewer.
const maxDeletedNodes = 1 << 16

// setHold stores the confirmation that a node reports to wait for, if it is valid.
func (w *workerStream) setHold(h *schedulerv1.Hold) {
	w.hold = nil
	if validate.Hold(h) {
		w.hold = h
	}
}

// held handles the report of a connected node about the confirmation that it waits for.
func (s *Scheduler) held(session *workerStream, h *schedulerv1.Hold) {
	over := session.hold != nil && h.GetId() == ""
	session.setHold(h)
	s.inventory.SetRefusal(session.name, s.refusal(session))
	s.report(s.briefReport(session.name))
	if over && s.inventory.Ready() {
		// The node accepts orders again. It may have refused orders in the meantime.
		s.allow(session)
	}
	s.confirm(session)
	s.wakeLoop()
}

// holdFor returns the confirmation that a session waits for. The node reports it, or the
// scheduler derives it from the cluster's state.
func (s *Scheduler) holdFor(session *workerStream) *schedulerv1.Hold {
	hold := session.hold
	if hold == nil && session.register.HighestTerm > s.term && s.inventory.Ready() {
		hold = &schedulerv1.Hold{
			Id:     "term-" + strconv.FormatInt(session.register.HighestTerm, 10) + "-" + strconv.FormatInt(s.term, 10),
			Reason: rikv1alpha1.ConfirmLowerTerm, Term: session.register.HighestTerm,
		}
	}
	if !s.unknownLocked(session) {
		return hold
	}
	if hold == nil {
		hold = &schedulerv1.Hold{Id: "node-" + string(session.uid), Reason: rikv1alpha1.ConfirmUnknownNode, Instances: int32(min(len(session.running), 1<<30))}
	}
	out, _ := proto.Clone(hold).(*schedulerv1.Hold)
	out.Certificate = string(session.uid)
	return out
}

func (s *Scheduler) holdOf(node string) *schedulerv1.Hold {
	session := s.workers[node]
	if session == nil {
		return nil
	}
	return s.holdFor(session)
}

// refusal returns why no instances are placed on a connected node. It is empty if there is no
// reason.
func (s *Scheduler) refusal(session *workerStream) string {
	hold := s.holdFor(session)
	if hold == nil {
		return ""
	}
	return fmt.Sprintf("the node waits for `rikctl node confirm %s` (%s)", session.name, hold.Reason)
}

// reconsider handles a change of a node's Node object, in which an operator may have confirmed
// the node's certificate.
func (s *Scheduler) reconsider(session *workerStream) {
	was := session.unknown
	if s.unknownLocked(session) == was {
		return
	}
	s.inventory.SetRefusal(session.name, s.refusal(session))
	s.report(s.briefReport(session.name))
	s.allow(session)
	s.wakeLoop()
}

// confirm sends an operator's confirmation to a node that waits for exactly that confirmation.
func (s *Scheduler) confirm(session *workerStream) {
	if session.hold == nil || session.hold.Reason == rikv1alpha1.ConfirmLowerTerm {
		return // The controller handles a lower term.
	}
	if s.inventory.NodeAnnotation(session.name, rikv1alpha1.AnnotationConfirmed) != session.hold.Id {
		return
	}
	session.put(aboutConfirmed, "", s.stamp(&schedulerv1.Order{
		Message: &schedulerv1.Order_Confirmed{Confirmed: &schedulerv1.Confirmed{Id: session.hold.Id}},
	}))
}

// deleteNode records that a Node object was deleted on purpose.
func (s *Scheduler) deleteNode(n *rikv1alpha1.Node) {
	s.forgetCertificates(append([]types.UID{
		types.UID(n.Annotations[rikv1alpha1.AnnotationConfirmedCertificate]), types.UID(n.Annotations[rikv1alpha1.AnnotationUnconfirmedCertificate]),
	}, n.UID)...)
}

// forgetCertificates records that Nodes were deleted on purpose, and disconnects the nodes
// whose certificates were issued for them.
func (s *Scheduler) forgetCertificates(uids ...types.UID) {
	for _, uid := range uids {
		if uid == "" || len(s.deletedNodes) >= maxDeletedNodes {
			continue
		}
		s.deletedNodes[uid] = true
	}
	for name := range s.workers {
		s.disconnectDeleted(name) // no effect before the listing is complete: Synced checks every node
	}
}

// asks reports whether a node waits for a confirmation before it stops instances that the
// cluster has no record of.
func (s *Scheduler) asks(node string) bool {
	session := s.workers[node]
	return session != nil && session.register.Asks
}
