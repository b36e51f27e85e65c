// Package fence implements the guarantee that a cluster gives a kcp: workloads with a fence run
// here only while the kcp and this cluster are in contact.
//
// For each Cluster upstream that this cluster represents there is one Lease, which the
// Cluster's syncer renews. The syncer's clock is not used. This controller writes a challenge
// on the Lease. The syncer reads it, then receives a response of the kcp, and then writes the
// challenge back. The answer thus proves that the kcp was reachable after the challenge was
// set, by the clock of this controller, however long the answer was delayed. A new challenge
// follows every answer. The syncer recognizes by it that this cluster fences.
//
// A workload with a fence of time F is stopped once the last proof is F/2 old, and starts again
// with the next proof. Its nodes request the age of the proof and stop its instances by
// themselves once the proof is F old. The second half covers delays between this controller and
// a node.
//
// Reads: Leases in the namespace rik-syncer, Namespaces, the view of Workloads. Writes: the
// challenge on those Leases. It does not stop instances itself: it notifies the workload
// reconciler.
//
// The decisions are pure: Lease.
package fence

import (
	"strings"
	"time"
)

// Lease is the state of the Lease of one Cluster. The zero value has no proof.
type Lease struct {
	challenge, answer string
	// own holds the last two challenges that this process set, with times of a monotonic clock.
	own [2]own
	// proven is the latest time after which the kcp was reachable. Zero means never.
	proven time.Time
}

type own struct {
	text string
	at   time.Time
}

// Observe applies the current content of the Lease. It returns whether a new challenge is due.
// That is so if there is none, if it was answered, or if another process set it, so that the
// next one uses this process's clock.
func (l *Lease) Observe(challenge, answer string, now time.Time) (due bool) {
	l.challenge, l.answer = challenge, answer
	// A time in the future proves nothing: the clock was set back, and the age of the answer is
	// not known.
	if at, ok := l.setAt(answer); ok && !at.After(now) && at.After(l.proven) {
		l.proven = at
	}
	return challenge == "" || challenge == answer || !l.isOwn(challenge)
}

// Issue returns the challenge to write. The name must be different each time.
func (l *Lease) Issue(now time.Time, name string) string {
	text := now.UTC().Format(time.RFC3339Nano) + " " + name
	l.own[0], l.own[1] = own{text, now}, l.own[0]
	return text
}

func (l *Lease) isOwn(challenge string) bool {
	return challenge == l.own[0].text || challenge == l.own[1].text
}

// setAt returns when a challenge was set: as this process recorded it, or as the earlier
// process wrote it into the challenge.
func (l *Lease) setAt(challenge string) (time.Time, bool) {
	for _, o := range l.own {
		if o.text == challenge && challenge != "" {
			return o.at, true
		}
	}
	stamp, _, _ := strings.Cut(challenge, " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	return at, err == nil
}

// Stops returns when workloads with a fence of this time must stop. It is the zero time, which
// is in the past, if there was no proof.
func (l *Lease) Stops(after time.Duration) time.Time {
	if l.proven.IsZero() {
		return time.Time{}
	}
	return l.proven.Add(after / 2)
}

// Age returns the age of the last proof. It returns false if there was none.
func (l *Lease) Age(now time.Time) (time.Duration, bool) {
	return now.Sub(l.proven), !l.proven.IsZero()
}
