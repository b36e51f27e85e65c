package scheduler

import (
	"sync"

	"rik.dev/rik/internal/wakeup"
)

// key identifies the object of a message. A later message about the same object replaces an
// earlier one that was not sent yet.
type key struct {
	kind kind
	id   string
}

type kind uint8

const (
	aboutSession kind = iota // Welcome, Admitted
	aboutBinding
	aboutUnplaced
	aboutObservation
	aboutNode
	aboutDisplaced
	aboutAllowed
	aboutOrder
	aboutAck
	aboutConfirmed
)

// outbox holds the messages to send on one stream, in the order in which their objects were
// first queued. put does not block. Only one goroutine calls take.
type outbox[M any] struct {
	mu    sync.Mutex
	order []key
	items map[key]M
	// taken counts the messages that were taken. delivered counts those of them whose sending is
	// done. The difference is the message that is being sent.
	taken, delivered int64
	// ready holds a token while there may be messages.
	ready wakeup.Signal
}

func newOutbox[M any]() *outbox[M] {
	return &outbox[M]{items: map[key]M{}, ready: wakeup.New()}
}

// put adds a message. merge combines it with an older message about the same object. If merge
// is nil, the newer message replaces the older one.
func (o *outbox[M]) put(k key, m M, merge func(older, newer M) M) {
	o.mu.Lock()
	older, waiting := o.items[k]
	if waiting && merge != nil {
		m = merge(older, m)
	}
	o.items[k] = m
	if !waiting {
		o.order = append(o.order, k)
	}
	o.mu.Unlock()
	o.ready.Wake()
}

// take returns the oldest message. ok is false if there is no message.
func (o *outbox[M]) take() (k key, m M, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.order) > 0 {
		k, o.order = o.order[0], o.order[1:]
		if m, ok = o.items[k]; ok {
			delete(o.items, k)
			o.taken++
			return k, m, true
		}
	}
	o.order = nil
	return key{}, m, false
}

// done records that the message taken last was sent.
func (o *outbox[M]) done() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.delivered++
}

// drop removes the messages that match.
func (o *outbox[M]) drop(match func(key, M) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := o.order[:0]
	for _, k := range o.order {
		if m, ok := o.items[k]; ok && !match(k, m) {
			kept = append(kept, k)
			continue
		}
		delete(o.items, k)
	}
	clear(o.order[len(kept):])
	o.order = kept
}

// waiting returns the number of messages.
func (o *outbox[M]) waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.items)
}
