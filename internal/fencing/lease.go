package fencing

import (
	"strings"
	"time"
)

// Lease is what the controller of a cluster knows about the Lease of one Cluster upstream. The zero
// value has no proof. It has these transitions:
//
//	no challenge ──Issue──▶ waiting ──Observe, with the answer──▶ answered ──Issue──▶ waiting
//
// Each answer moves the proof to the time at which its challenge was set.
type Lease struct {
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

// Proven returns the latest time after which the kcp was reachable. It is zero if there is no
// proof.
func (l *Lease) Proven() time.Time { return l.proven }

// Age returns the age of the last proof. It returns false if there was none.
func (l *Lease) Age(now time.Time) (time.Duration, bool) {
	return now.Sub(l.proven), !l.proven.IsZero()
}
