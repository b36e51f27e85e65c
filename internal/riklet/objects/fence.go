package objects

import (
	"time"

	"rik.dev/rik/internal/rpc/nodev1"
)

// proof is what is known about the fence of one namespace.
type proof struct {
	// askedAt is the time of the unanswered request. It is zero if there is none.
	askedAt time.Time
	// proven is a time at or after which the kcp was reachable, as late as the answers prove. It
	// is zero if there is no proof.
	proven time.Time
	// free is true if the controller's last answer was that the namespace belongs to no kcp.
	free bool
}

// Fence returns a time, by the clock of this node, at or after which the namespace's kcp was
// reachable from the cluster. It is as late as the answers prove, and zero if there is no proof.
// free is true if the namespace has no fence.
func (s *Store) Fence(namespace string) (proven time.Time, free bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.fences[namespace]
	if p == nil {
		return time.Time{}, false
	}
	return p.proven, p.free
}

// AskFence requests a new proof, unless a request is pending. Changed is called after the answer.
func (s *Store) AskFence(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.fences[namespace]
	if p == nil {
		p = &proof{}
		s.fences[namespace] = p
	}
	if !p.askedAt.IsZero() {
		return
	}
	// Take the time before the request is sent, so that the resulting proof is rather too old
	// than too young.
	p.askedAt = time.Now()
	s.askLocked(Key{nodev1.Kind_KIND_FENCE, namespace, ""})
}

// deliverFence handles an answer. An answer without an age proves nothing.
func (s *Store) deliverFence(key Key, object *nodev1.Object) {
	s.mu.Lock()
	p := s.fences[key.Namespace]
	if p == nil || p.askedAt.IsZero() {
		s.mu.Unlock()
		return // no request is pending
	}
	asked := p.askedAt
	p.askedAt = time.Time{}
	if object.GetError() == "" {
		p.free = !object.GetFound()
		if at := asked.Add(-time.Duration(max(object.GetAgeMillis(), 0)) * time.Millisecond); object.AgeMillis != nil && at.After(p.proven) {
			p.proven = at
		}
	}
	s.mu.Unlock()
	s.cfg.Changed()
}
