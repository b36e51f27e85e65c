package scheduler

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
)

const (
	// behind is how long the controller's word of a new Node may take: the node
	// comes here as soon as it has its certificate.
	behind = 3 * time.Second
	// behindPoll is how often that is looked at meanwhile.
	behindPoll = 20 * time.Millisecond
)

var errStranger = errors.New("the Node of the certificate does not exist")

// await gives the controller time to tell of a node that has just joined.
func (s *Scheduler) await(ctx context.Context, session *workerStream) error {
	if !s.stranger(session) {
		return nil
	}
	patience := time.NewTimer(behind)
	defer patience.Stop()
	ticker := time.NewTicker(behindPoll)
	defer ticker.Stop()
	for s.stranger(session) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-patience.C:
			return nil
		case <-ticker.C:
		}
	}
	return nil
}

// stranger says whether the Node that the certificate was given for is known not
// to exist: a certificate ends with its Node.
func (s *Scheduler) stranger(session *workerStream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.strangerLocked(session)
}

func (s *Scheduler) strangerLocked(session *workerStream) bool {
	if session.trusted || !s.inventory.Ready() {
		return false
	}
	uid, exists := s.inventory.NodeUID(session.name)
	return !exists || session.uid != "" && session.uid != uid
}

// expel ends the stream of a node whose Node is gone. It is called with mu held
// and says whether it did.
func (s *Scheduler) expel(name string) bool {
	session := s.workers[name]
	if session == nil || !s.strangerLocked(session) {
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

// sendAway tells a node that it may run nothing, which it obeys within 10 s, and
// why it is not heard any more.
func (s *Scheduler) sendAway(session *workerStream, stream workerServer) error {
	s.mu.Lock()
	term := s.term
	s.mu.Unlock()
	nothing := &schedulerv1.Order{Term: term, Message: &schedulerv1.Order_Allowed{Allowed: &schedulerv1.Allowed{}}}
	if err := stream.Send(nothing); err != nil {
		return err
	}
	return status.Errorf(codes.PermissionDenied,
		"node %q was deleted from the cluster, and its certificate is revoked with it: to join again, remove identity.pem from its state directory and start it with a token of `rikctl token create`", session.name)
}
