package scheduler

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
)

const (
	// behind is how long the scheduler waits for the controller to send a new Node. The node
	// connects as soon as it has its certificate, so the controller's message may arrive later.
	behind = 3 * time.Second
	// behindPoll is the interval at which await checks for the Node.
	behindPoll = 20 * time.Millisecond
)

var (
	errDeleted = errors.New("the Node of the certificate was deleted")
	errTaken   = errors.New("the name belongs to another node")
)

// await gives the controller time to send the Node of a node that has just joined.
func (s *Scheduler) await(ctx context.Context, session *workerStream) error {
	if !s.isUnknown(session) {
		return nil
	}
	timeout := time.NewTimer(behind)
	defer timeout.Stop()
	ticker := time.NewTicker(behindPoll)
	defer ticker.Stop()
	for s.isUnknown(session) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout.C:
			return nil
		case <-ticker.C:
		}
	}
	return nil
}

func (s *Scheduler) isUnknown(session *workerStream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unknownLocked(session)
}

// unknownLocked reports whether the cluster has no record of the Node that the certificate was
// issued for: the Node does not exist, and no record says that it was deleted. Then the
// datastore has lost the Node, or it is another datastore. No instance may be stopped because
// of that before an operator confirms it.
func (s *Scheduler) unknownLocked(session *workerStream) bool {
	session.unknown = false
	if session.trusted || !s.inventory.Ready() || s.deletedLocked(session) {
		return false
	}
	uid, exists := s.inventory.NodeUID(session.name)
	session.unknown = !exists || session.uid != "" && session.uid != uid &&
		string(session.uid) != s.inventory.NodeAnnotation(session.name, rikv1alpha1.AnnotationConfirmedCertificate)
	return session.unknown
}

// deletedLocked reports whether the Node of the certificate was deleted. A certificate is valid
// only while its Node exists.
func (s *Scheduler) deletedLocked(session *workerStream) bool {
	return !session.trusted && s.inventory.Ready() && session.uid != "" && s.deletedNodes[session.uid]
}

// takenLocked reports whether an unknown node has the name of a known one.
func (s *Scheduler) takenLocked(session *workerStream) bool {
	if _, exists := s.inventory.NodeUID(session.name); !exists || !s.unknownLocked(session) {
		return false
	}
	return string(session.uid) != s.inventory.NodeAnnotation(session.name, rikv1alpha1.AnnotationUnconfirmedCertificate)
}

// disconnectDeleted ends the stream of a node whose Node was deleted, and reports whether it did. The
// caller holds mu.
func (s *Scheduler) disconnectDeleted(name string) bool {
	session := s.workers[name]
	if session == nil || !s.deletedLocked(session) {
		return false
	}
	// Further messages of the node have no effect, and neither has its disconnection.
	delete(s.workers, name)
	delete(s.registers, name)
	s.inventory.Leave(name)
	close(session.revoked)
	s.log.Info("refused a node whose Node object was deleted", "node", name)
	return true
}

// sendAway informs a node that it was deleted and may run no instances. The node complies within
// 10 s. The returned status says why the stream ends.
func (s *Scheduler) sendAway(session *workerStream, stream workerServer) error {
	s.mu.Lock()
	away := s.stamp(&schedulerv1.Order{Message: &schedulerv1.Order_Dismissed{Dismissed: &schedulerv1.Dismissed{}}})
	s.mu.Unlock()
	if !session.register.Asks {
		away.Message = &schedulerv1.Order_Allowed{Allowed: &schedulerv1.Allowed{}}
	}
	if err := stream.Send(away); err != nil {
		return err
	}
	return status.Errorf(codes.PermissionDenied,
		"node %q was deleted from the cluster, which revoked its certificate. To join again, remove identity.pem from its state directory and start it with a token of `rikctl token create`", session.name)
}

// refuseTaken returns the refusal of a node whose name belongs to another node. The instances
// on the refused node keep running.
func refuseTaken(name string) error {
	return status.Errorf(codes.PermissionDenied,
		"the certificate does not belong to node %q of this cluster, and the cluster has no record of the certificate. If the machine of that Node does not exist any more, delete the Node (rikctl delete node %s). "+
			"Otherwise remove identity.pem from the state directory of this node, and start it with another --node-name and a token of `rikctl token create`", name, name)
}
