// Package renewal decides when a syncer may renew the Lease by which its cluster knows that the
// kcp is reachable. It also decides what the syncer reports about that Lease. It is pure: it has
// no clock, no lock and no connection to a server.
//
// The Lease is a guarantee on which the kcp relies. The kcp considers a cluster silent 40 s after
// the last heartbeat. After the time of a root's fence, the replicas of the root run in other
// clusters. A renewal therefore means all of this:
//
//   - A heartbeat was accepted that began less than [Renewals.Trust] ago. That is much less than
//     the time for which the kcp waits for a heartbeat. The kcp decides from the last heartbeat
//     that it has received, so no such decision can be older than this proof.
//   - After the challenge was read, the kcp was asked for the Cluster, and did not consider it
//     silent. The renewal covers the time before that request.
//   - Since the kcp was last unreachable, everything that it wants of fenced objects was read
//     from it again and was applied in the cluster. Replicas that were scaled to 0 in the
//     meantime do not return.
package renewal

import "time"

// Renewals is the state on which renewals depend. The zero value with a Trust is the state of a
// new syncer. It may not renew the Lease.
type Renewals struct {
	// Trust is the maximum age of the beginning of the last accepted heartbeat.
	Trust time.Duration

	// beat is when the last accepted heartbeat began. It is zero if no heartbeat was accepted, or
	// if the kcp has considered the cluster silent since.
	beat time.Time
	// since is when the kcp became reachable again.
	since   time.Time
	settled bool
}

// Beaten records an accepted heartbeat: when it began, when the response came, and whether the
// response shows the cluster as silent.
func (r *Renewals) Beaten(began, answered time.Time, silent bool) {
	switch {
	case silent:
		r.Cut()
	case r.beat.IsZero(), began.Sub(r.beat) >= r.Trust:
		// The kcp may have considered the cluster silent in between.
		r.beat, r.since, r.settled = began, answered, false
	case began.After(r.beat):
		r.beat = began
	}
}

// Cut records that the kcp considers the cluster silent, or does not have the Cluster.
func (r *Renewals) Cut() { r.beat, r.settled = time.Time{}, false }

// InTouch reports whether heartbeats arrive.
func (r *Renewals) InTouch(now time.Time) bool {
	return !r.beat.IsZero() && now.Sub(r.beat) < r.Trust
}

// MustSettle reports whether the syncer must check that everything is applied.
func (r *Renewals) MustSettle(now time.Time) bool { return r.InTouch(now) && !r.settled }

// Settled records that a check which began at a time found everything applied.
func (r *Renewals) Settled(began time.Time) {
	if !r.beat.IsZero() && !began.Before(r.since) {
		r.settled = true
	}
}

// May reports whether a challenge that was read before now may be answered.
func (r *Renewals) May(now time.Time) bool { return r.InTouch(now) && r.settled }

// The interval at which the Lease is checked is a tenth of the shortest fence. The minimum is
// least, and the maximum is Patient. Before the cluster has acknowledged that it fences, the
// interval is least until early after the start, so that the answer is known soon.
const (
	tenth   = 10
	least   = time.Second
	early   = tooLong
	Patient = 10 * time.Second
)

// Pace returns the time until the next check of the Lease. A fence needs an answer well before
// half of its time is over. If no object asks for a fence (shortest is 0), the check only finds
// out whether the cluster fences.
func Pace(shortest time.Duration, acknowledged bool, running time.Duration) time.Duration {
	switch {
	case shortest > 0:
		return min(max(shortest/tenth, least), Patient)
	case !acknowledged && running < early:
		return least
	default:
		return Patient
	}
}

// The syncer gives up its knowledge of the other end after this many failures in a row, and only
// if they last this long. A syncer that was suspended for a while draws no conclusion from that.
const (
	enough  = 3
	tooLong = 30 * time.Second
)

// count is since when, and how often in a row, a check has failed.
type count struct {
	since time.Time
	times int
}

func (c *count) note(now time.Time) {
	if c.times == 0 {
		c.since = now
	}
	c.times++
}

func (c *count) isTooMuch(now time.Time) bool {
	return c.times >= enough && now.Sub(c.since) >= tooLong
}

// Acknowledgement is what the syncer knows about the controller that sets the challenges. The
// zero value is the state of a new syncer.
type Acknowledgement struct {
	last string
	// looked is true if a challenge was seen. The first challenge that a run of the syncer sees
	// may come from a controller that no longer runs.
	looked, acknowledged, answered bool
	// unheard counts the checks that found no new challenge after an answer. failures counts the
	// checks that failed. behind counts the checks at which something was not applied.
	unheard, failures, behind count
}

// Observe records the challenge on the Lease.
func (a *Acknowledgement) Observe(challenge string, now time.Time) {
	a.failures = count{}
	switch {
	case challenge == "" || challenge == a.last && a.looked:
		if a.answered || challenge == "" {
			a.unheard.note(now)
		}
	default:
		a.acknowledged = a.acknowledged || a.looked
		a.answered, a.unheard = false, count{}
	}
	a.last, a.looked = challenge, true
}

// Answered records that the last challenge was answered.
func (a *Acknowledgement) Answered() { a.answered = true }

// Failed records that the Lease could not be read or written.
func (a *Acknowledgement) Failed(now time.Time) { a.failures.note(now) }

// Behind records whether something is not applied that must be applied before the Lease is
// renewed.
func (a *Acknowledgement) Behind(is bool, now time.Time) {
	if is {
		a.behind.note(now)
	} else {
		a.behind = count{}
	}
}

// Verdict is the answer to the question whether a cluster fences.
type Verdict int

// The verdicts.
const (
	// Undecided: it is too early to decide. The earlier verdict stays valid.
	Undecided Verdict = iota
	// Fences: a controller sets challenges.
	Fences
	// Mute: no controller sets challenges, or it has stopped.
	Mute
	// Unreachable: the Lease cannot be read or written.
	Unreachable
	// Stuck: the Lease is not renewed, because what the kcp wants cannot be applied in the
	// cluster.
	Stuck
)

// Verdict returns whether the cluster fences. running is how long the syncer has run.
func (a *Acknowledgement) Verdict(now time.Time, running time.Duration) Verdict {
	switch {
	case a.failures.isTooMuch(now):
		return Unreachable
	case a.behind.isTooMuch(now):
		return Stuck
	case a.unheard.isTooMuch(now):
		return Mute
	case a.acknowledged:
		return Fences
	case running >= tooLong && a.looked:
		return Mute
	default:
		return Undecided
	}
}

// IsAcknowledged reports whether a controller has set a new challenge since the syncer started.
func (a *Acknowledgement) IsAcknowledged() bool { return a.acknowledged }
