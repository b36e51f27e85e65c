package connection

import (
	"sync"
	"time"

	"rik.dev/rik/internal/rpc/schedulerv1"
)

// resendAfter is how long a sent observation may stay unacknowledged on a
// healthy connection: the scheduler acknowledges only what a controller took,
// and may have lost what it held for one.
const resendAfter = 30 * time.Second

// Outbox holds the latest observation of each instance until it is dropped.
// However slow the scheduler is, it holds one per instance. Its methods are
// safe for concurrent use and do not block.
type Outbox struct {
	mu     sync.Mutex
	latest map[string]*letter
	queue  []string // UIDs to be sent, in the order of their news; no UID twice
	ready  chan struct{}
}

type letter struct {
	observation *schedulerv1.Observation
	queued      bool
	acked       bool
	sentAt      time.Time
}

// NewOutbox returns an empty one.
func NewOutbox() *Outbox {
	return &Outbox{latest: map[string]*letter{}, ready: make(chan struct{}, 1)}
}

// Put replaces the instance's observation. The caller no longer changes it.
func (o *Outbox) Put(observation *schedulerv1.Observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.latest[observation.GetUid()]
	if l == nil {
		l = &letter{}
		o.latest[observation.GetUid()] = l
	}
	l.observation, l.acked = observation, false
	o.queueLocked(observation.GetUid(), l)
}

func (o *Outbox) queueLocked(uid string, l *letter) {
	if !l.queued {
		l.queued = true
		o.queue = append(o.queue, uid)
	}
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// Ack marks an observation, and all before it, as received. It reports whether
// that was the latest.
func (o *Outbox) Ack(uid string, sequence int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.latest[uid]
	if l == nil || l.observation.GetSequence() > sequence {
		return false
	}
	l.acked = true
	return true
}

// Drop forgets an instance.
func (o *Outbox) Drop(uid string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.latest, uid)
}

// Again queues everything, also what was acknowledged: a scheduler that was
// restarted knows nothing.
func (o *Outbox) Again() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for uid, l := range o.latest {
		o.queueLocked(uid, l)
	}
}

// Overdue queues what was sent long ago and is not acknowledged.
func (o *Outbox) Overdue(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for uid, l := range o.latest {
		if !l.acked && !l.queued && now.Sub(l.sentAt) >= resendAfter {
			o.queueLocked(uid, l)
		}
	}
}

// Ready is readable when Next may have something.
func (o *Outbox) Ready() <-chan struct{} { return o.ready }

// Next takes the next observation to send; nil if there is none.
func (o *Outbox) Next(now time.Time) *schedulerv1.Observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) > 0 {
		uid := o.queue[0]
		o.queue = o.queue[1:]
		if l := o.latest[uid]; l != nil && l.queued {
			l.queued, l.sentAt = false, now
			return l.observation
		}
	}
	o.queue = nil // lets go of the array
	return nil
}
