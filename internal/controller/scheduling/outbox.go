package scheduling

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/internal/controller/instance"
)

// outbox collects what the scheduler must be told next, each thing once. What
// exactly is told is decided when it is sent, so that a slow scheduler gets the
// present state and not the way to it.
type outbox struct {
	mu sync.Mutex
	// Below is guarded by mu.
	work batch
	// wake has room for one signal, given under mu's protection of work.
	wake chan struct{}
}

// batch is what was collected since the last take.
type batch struct {
	nodes      map[string]struct{}
	revisions  map[types.NamespacedName]struct{}
	instances  map[types.UID]struct{}
	acks       []ack
	tombstones []instance.Tombstone
}

type ack struct {
	uid     types.UID
	node    string
	durable bool
}

func newBatch() batch {
	return batch{
		nodes:     map[string]struct{}{},
		revisions: map[types.NamespacedName]struct{}{},
		instances: map[types.UID]struct{}{},
	}
}

func newOutbox() *outbox {
	return &outbox{work: newBatch(), wake: make(chan struct{}, 1)}
}

// add changes what is collected and wakes the sender.
func (o *outbox) add(change func(*batch)) {
	o.mu.Lock()
	change(&o.work)
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// take gives what was collected and starts anew.
func (o *outbox) take() batch {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.work
	o.work = newBatch()
	return b
}
