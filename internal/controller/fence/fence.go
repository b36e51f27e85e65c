// Package fence keeps the promise that a cluster makes to a kcp: that workloads which ask
// for a fence run here only while the kcp is in touch with this cluster.
//
// For each Cluster upstream that this cluster is there is one Lease, which the Cluster's
// syncer renews. Its clock counts for nothing. This controller writes a challenge on the
// Lease, the syncer reads it, then has a sign of life from the kcp, and then writes the
// challenge back. So whatever an answer was delayed by, it proves that the kcp was in touch
// after the challenge was set, by the clock of the one who set it. A new challenge follows
// every answer: that is also how the syncer knows that somebody fences here.
//
// A workload that asks for a fence of time F is stopped once the last proof is F/2 old, and
// comes back with the next proof. Its nodes ask for the age of the proof and stop its
// instances by themselves once it is F old: the second half is for what is in the way
// between this controller and a node.
//
// Reads: Leases in the namespace rik-syncer, Namespaces, the view of Workloads. Writes: the
// challenge on those Leases. It stops nothing itself: it tells the workload reconciler.
//
// The decisions are pure: Lease.
package fence

import (
	"strings"
	"time"
)

// Lease is what is known of the Lease of one Cluster. The zero value knows nothing.
type Lease struct {
	challenge, answer string
	// own are the last two challenges that were set here, by a clock that does not jump.
	own [2]own
	// proven is the latest time after which the kcp has been in touch; zero: never.
	proven time.Time
}

type own struct {
	text string
	at   time.Time
}

// Observe takes what the Lease says now. It returns whether a new challenge is due: there
// is none, it was answered, or it was not set here, so that the next one is by the clock
// of this process.
func (l *Lease) Observe(challenge, answer string, now time.Time) (due bool) {
	l.challenge, l.answer = challenge, answer
	// A stamp from the future proves nothing: the clock was set back, and nobody knows how
	// old it is.
	if at, ok := l.setAt(answer); ok && !at.After(now) && at.After(l.proven) {
		l.proven = at
	}
	return challenge == "" || challenge == answer || !l.isOwn(challenge)
}

// Issue makes the challenge that is to be written. The name must be another each time.
func (l *Lease) Issue(now time.Time, name string) string {
	text := now.UTC().Format(time.RFC3339Nano) + " " + name
	l.own[0], l.own[1] = own{text, now}, l.own[0]
	return text
}

func (l *Lease) isOwn(challenge string) bool {
	return challenge == l.own[0].text || challenge == l.own[1].text
}

// setAt is when a challenge was set: as this process remembers, or as the one before it
// wrote down.
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

// Stops is when workloads that ask for a fence of this time have to stop; the zero time,
// which is long ago, if the kcp has never been in touch.
func (l *Lease) Stops(after time.Duration) time.Time {
	if l.proven.IsZero() {
		return time.Time{}
	}
	return l.proven.Add(after / 2)
}

// Age is how long ago the kcp was last known to be in touch. It is false if it never was.
func (l *Lease) Age(now time.Time) (time.Duration, bool) {
	return now.Sub(l.proven), !l.proven.IsZero()
}
