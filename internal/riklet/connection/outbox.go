package connection

import (
	"sync"
	"time"

	"rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/wakeup"
)

// resendAfter is how long a sent observation may stay unacknowledged on a working connection. The
// scheduler acknowledges an observation only after a controller has received it, and it may have
// lost observations that waited for a controller.
const resendAfter = 30 * time.Second

// Outbox holds the latest observation of each instance until it is dropped. Even with a slow
// scheduler, it holds only one per instance. Its methods are safe for concurrent use and do not
// block.
type Outbox struct {
	mu     sync.Mutex
	latest map[string]*queuedReport
	queue  []string // UIDs to send, in the order of their changes; no UID twice
	ready  wakeup.Signal
}

type queuedReport struct {
	observation *schedulerv1.Observation
	queued      bool
	acked       bool
	sentAt      time.Time
}

// NewOutbox returns an empty outbox.
func NewOutbox() *Outbox {
	return &Outbox{latest: map[string]*queuedReport{}, ready: wakeup.New()}
}

// Put replaces the instance's observation. The caller must not change it any more.
func (o *Outbox) Put(observation *schedulerv1.Observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.latest[observation.GetUid()]
	if l == nil {
		l = &queuedReport{}
		o.latest[observation.GetUid()] = l
	}
	l.observation, l.acked = observation, false
	o.queueLocked(observation.GetUid(), l)
}

func (o *Outbox) queueLocked(uid string, l *queuedReport) {
	if !l.queued {
		l.queued = true
		o.queue = append(o.queue, uid)
	}
	o.ready.Wake()
}

// Ack marks an observation, and all before it, as received. It reports whether it was the latest.
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

// Drop removes an instance's observation.
func (o *Outbox) Drop(uid string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.latest, uid)
}

// Again queues all observations, including acknowledged ones, because a scheduler that restarted
// has lost them.
func (o *Outbox) Again() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for uid, l := range o.latest {
		o.queueLocked(uid, l)
	}
}

// Overdue queues observations that were sent long ago and are not acknowledged.
func (o *Outbox) Overdue(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for uid, l := range o.latest {
		if !l.acked && !l.queued && now.Sub(l.sentAt) >= resendAfter {
			o.queueLocked(uid, l)
		}
	}
}

// Ready returns a channel that is readable when Next may return an observation.
func (o *Outbox) Ready() <-chan struct{} { return o.ready }

// Next returns the next observation to send, or nil if there is none.
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
	o.queue = nil // frees the array
	return nil
}
