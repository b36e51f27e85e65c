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
	// behind is how long the controller's word of a new Node may take: the node
	// comes here as soon as it has its certificate.
	behind = 3 * time.Second
	// behindPoll is how often that is looked at meanwhile.
	behindPoll = 20 * time.Millisecond
)

var (
	errDeleted = errors.New("the Node of the certificate was deleted")
	errTaken   = errors.New("the name is that of another node")
)

// await gives the controller time to tell of a node that has just joined.
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

// unknownLocked says whether the cluster has no record of the Node that the certificate
// was given for, neither that it exists nor that it was deleted: the datastore has lost it,
// or is another one. Nothing may be stopped because of that before an operator says so.
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

// deletedLocked says whether the Node of the certificate was deleted: a certificate ends
// with its Node.
func (s *Scheduler) deletedLocked(session *workerStream) bool {
	return !session.trusted && s.inventory.Ready() && session.uid != "" && s.deletedNodes[session.uid]
}

// takenLocked says whether a node that the cluster does not know has the name of one that
// it knows.
func (s *Scheduler) takenLocked(session *workerStream) bool {
	if _, exists := s.inventory.NodeUID(session.name); !exists || !s.unknownLocked(session) {
		return false
	}
	return string(session.uid) != s.inventory.NodeAnnotation(session.name, rikv1alpha1.AnnotationUnconfirmedCertificate)
}

// expel ends the stream of a node whose Node was deleted. It is called with mu held
// and says whether it did.
func (s *Scheduler) expel(name string) bool {
	session := s.workers[name]
	if session == nil || !s.deletedLocked(session) {
		return false
	}
	// Nothing that it still says counts, nor does its leaving.
	delete(s.workers, name)
	delete(s.registers, name)
	s.inventory.Leave(name)
	close(session.revoked)
	s.log.Info("node was deleted and is sent away", "node", name)
	return true
}

// sendAway tells a node that it was deleted and may run nothing, which it obeys within
// 10 s, and why it is not heard any more.
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
		"node %q was deleted from the cluster, and its certificate is revoked with it: to join again, remove identity.pem from its state directory and start it with a token of `rikctl token create`", session.name)
}

// refuseTaken leaves what the node runs alone.
func refuseTaken(name string) error {
	return status.Errorf(codes.PermissionDenied,
		"node %q of this cluster is another one than the certificate was given for, and the cluster has no record of that one: delete the Node (rikctl delete node %s) if its machine is gone, "+
			"or remove identity.pem from this one's state directory and start it with another --node-name and a token of `rikctl token create`", name, name)
}
