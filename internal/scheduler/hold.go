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

// maxDeletedNodes bounds the deleted Nodes that are remembered; the controller sends
// fewer.
const maxDeletedNodes = 1 << 16

// setHold takes over what a node says that it waits for, as far as it makes sense.
func (w *workerStream) setHold(h *schedulerv1.Hold) {
	w.hold = nil
	if validate.Hold(h) {
		w.hold = h
	}
}

// held notes what a connected node says that it waits for.
func (s *Scheduler) held(session *workerStream, h *schedulerv1.Hold) {
	over := session.hold != nil && h.GetId() == ""
	session.setHold(h)
	s.inventory.SetRefusal(session.name, s.refusal(session))
	s.report(s.briefReport(session.name))
	if over && s.inventory.Ready() {
		// It obeys again, and may have refused orders meanwhile.
		s.allow(session)
	}
	s.confirm(session)
	s.poke()
}

// holdFor is what a session waits for, by its own word and by what the cluster knows.
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
		hold = &schedulerv1.Hold{Id: "node-" + string(session.uid), Reason: rikv1alpha1.ConfirmUnknownNode, Instances: int32(min(len(session.running), 1<<30))} //nolint:gosec // bounded
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

// refusal says why a connected node is given nothing.
func (s *Scheduler) refusal(session *workerStream) string {
	hold := s.holdFor(session)
	if hold == nil {
		return ""
	}
	return fmt.Sprintf("the node waits for `rikctl node confirm %s` (%s)", session.name, hold.Reason)
}

// reconsider is for a node whose Node has changed: an operator may have confirmed its
// certificate.
func (s *Scheduler) reconsider(session *workerStream) {
	was := session.unknown
	if s.unknownLocked(session) == was {
		return
	}
	s.inventory.SetRefusal(session.name, s.refusal(session))
	s.report(s.briefReport(session.name))
	s.allow(session)
	s.poke()
}

// confirm passes an operator's word on to a node that waits for just that.
func (s *Scheduler) confirm(session *workerStream) {
	if session.hold == nil || session.hold.Reason == rikv1alpha1.ConfirmLowerTerm {
		return // The controller sees to the latter.
	}
	if s.inventory.NodeAnnotation(session.name, rikv1alpha1.AnnotationConfirmed) != session.hold.Id {
		return
	}
	session.put(aboutConfirmed, "", s.stamp(&schedulerv1.Order{
		Message: &schedulerv1.Order_Confirmed{Confirmed: &schedulerv1.Confirmed{Id: session.hold.Id}},
	}))
}

// deleteNode notes that the controller's object of a node was deleted on purpose.
func (s *Scheduler) deleteNode(n *rikv1alpha1.Node) {
	s.forgetCertificates(append([]types.UID{
		types.UID(n.Annotations[rikv1alpha1.AnnotationConfirmedCertificate]), types.UID(n.Annotations[rikv1alpha1.AnnotationUnconfirmedCertificate]),
	}, n.UID)...)
}

// forgetCertificates remembers that Nodes were deleted on purpose, and sends away the nodes
// whose certificates were given for them.
func (s *Scheduler) forgetCertificates(uids ...types.UID) {
	for _, uid := range uids {
		if uid == "" || len(s.deletedNodes) >= maxDeletedNodes {
			continue
		}
		s.deletedNodes[uid] = true
	}
	for name := range s.workers {
		s.expel(name) // not before the listing is complete: Synced looks at every node
	}
}

// asks says whether a node holds before it stops what the cluster has no record of.
func (s *Scheduler) asks(node string) bool {
	session := s.workers[node]
	return session != nil && session.register.Asks
}
