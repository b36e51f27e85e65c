package objects

import (
	"time"

	"rik.dev/rik/internal/fencing"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Fence returns the proof for a namespace.
func (s *Store) Fence(namespace string) fencing.Proof {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.fences[namespace]; p != nil {
		return *p
	}
	return fencing.Proof{}
}

// AskFence requests a new proof, unless a request is pending. Changed is called after the answer.
func (s *Store) AskFence(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.fences[namespace]
	if p == nil {
		p = &fencing.Proof{}
		s.fences[namespace] = p
	}
	if p.Ask(time.Now()) {
		s.askLocked(Key{nodev1.Kind_KIND_FENCE, namespace, ""})
	}
}

// deliverFence handles an answer. An answer without an age proves nothing.
func (s *Store) deliverFence(key Key, object *nodev1.Object) {
	answer := fencing.Answer{Failed: object.GetError() != "", Free: !object.GetFound()}
	if object.AgeMillis != nil {
		age := time.Duration(object.GetAgeMillis()) * time.Millisecond
		answer.Age = &age
	}
	s.mu.Lock()
	p := s.fences[key.Namespace]
	expected := p != nil && p.Answered(answer)
	s.mu.Unlock()
	if expected {
		s.cfg.Changed()
	}
}
