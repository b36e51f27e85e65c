package objects

import (
	"time"

	"rik.dev/rik/internal/rpc/nodev1"
)

// proof is what is known of the fence of one namespace.
type proof struct {
	// askedAt is when the question was put that is not answered yet; zero: there is none.
	askedAt time.Time
	// proven is the latest time after which the kcp was in touch; zero: none is known.
	proven time.Time
	// free: the controller said last that the namespace belongs to no kcp.
	free bool
}

// Fence says until when nothing speaks against what is fenced in a namespace: the latest
// time, by the clock of this node, after which the namespace's kcp was in touch with the
// cluster; zero if none is known. free is true where nothing is fenced.
func (s *Store) Fence(namespace string) (proven time.Time, free bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.fences[namespace]
	if p == nil {
		return time.Time{}, false
	}
	return p.proven, p.free
}

// AskFence asks for a new proof, unless an answer is awaited. Changed is called when it is
// here.
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
	// From before the question is sent: what the answer proves may be older, never younger.
	p.askedAt = time.Now()
	s.askLocked(Key{nodev1.Kind_KIND_FENCE, namespace, ""})
}

// deliverFence takes an answer. Without an age it proves nothing.
func (s *Store) deliverFence(key Key, object *nodev1.Object) {
	s.mu.Lock()
	p := s.fences[key.Namespace]
	if p == nil || p.askedAt.IsZero() {
		s.mu.Unlock()
		return // nobody asked
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
