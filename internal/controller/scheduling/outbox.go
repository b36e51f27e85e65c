package scheduling

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/internal/controller/instance"
	"rik.dev/rik/internal/wakeup"
)

// outbox collects the objects about which the scheduler must be informed, each object once. The
// content of a message is computed when it is sent, so that a slow scheduler receives the
// current state and no intermediate states.
type outbox struct {
	mu sync.Mutex
	// mu guards the fields up to wake.
	work batch
	// wake is set after work has changed.
	wake wakeup.Signal
}

// batch holds the objects collected since the last take.
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
	return &outbox{work: newBatch(), wake: wakeup.New()}
}

// add changes the batch and wakes the sender.
func (o *outbox) add(change func(*batch)) {
	o.mu.Lock()
	change(&o.work)
	o.mu.Unlock()
	o.wake.Wake()
}

// take returns the batch and starts a new one.
func (o *outbox) take() batch {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.work
	o.work = newBatch()
	return b
}
