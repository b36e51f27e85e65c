package controller

import (
	"strings"
	"sync"
)

// holder is who holds the Lease.
type holder struct{ state *holderState }

type holderState struct {
	mu       sync.Mutex
	identity string
	changed  chan struct{} // closed and replaced at each change
}

func newHolder() holder { return holder{&holderState{changed: make(chan struct{})}} }

// set records the holder. The Lease adds a suffix to the identity of a process, for each of its
// runs.
func (h holder) set(identity string) {
	identity, _, _ = strings.Cut(identity, "_")
	h.state.mu.Lock()
	defer h.state.mu.Unlock()
	if h.state.identity == identity {
		return
	}
	h.state.identity = identity
	close(h.state.changed)
	h.state.changed = make(chan struct{})
}

func (h holder) get() (string, <-chan struct{}) {
	h.state.mu.Lock()
	defer h.state.mu.Unlock()
	return h.state.identity, h.state.changed
}
