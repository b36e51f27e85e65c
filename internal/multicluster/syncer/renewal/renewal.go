// Package renewal decides when a syncer may renew the Lease by which its cluster knows
// that the kcp is in touch, and what it says of that. It is pure: it knows no clock, no
// lock and no server.
//
// The Lease is a promise that the kcp counts on: from 40 s after the last heartbeat the
// kcp finds the cluster silent, and after the time of a root's fence its replicas run
// elsewhere. So a renewal means all of this:
//
//   - A heartbeat was accepted that began less than [Renewals.Trust] ago, far less than the
//     kcp waits for one. The kcp's verdict takes the last heartbeat for granted, so no
//     verdict can be older than this proof.
//   - After the challenge was read, the kcp was asked for the Cluster, and did not call it
//     silent. What is renewed is the time before that question.
//   - Since the kcp was last out of reach, everything that it wants of fenced objects has
//     been read from it anew and is so in the cluster: what was scaled to 0 meanwhile does
//     not come back.
package renewal

import "time"

// Renewals is what is known. The zero value, with a Trust, is how a syncer begins: it may
// renew nothing.
type Renewals struct {
	// Trust is how old the beginning of the last accepted heartbeat may be.
	Trust time.Duration

	// beat is when the last accepted heartbeat began; zero: none, or the kcp called the
	// cluster silent since.
	beat time.Time
	// since is when the kcp was in reach again after it was not.
	since   time.Time
	settled bool
}

// Beaten takes an accepted heartbeat: when it began, when the answer came, and whether the
// answer called the cluster silent.
func (r *Renewals) Beaten(began, answered time.Time, silent bool) {
	switch {
	case silent:
		r.Cut()
	case r.beat.IsZero(), began.Sub(r.beat) >= r.Trust:
		// The kcp may have given the cluster up in between.
		r.beat, r.since, r.settled = began, answered, false
	case began.After(r.beat):
		r.beat = began
	}
}

// Cut takes that the kcp calls the cluster silent, or does not know it.
func (r *Renewals) Cut() { r.beat, r.settled = time.Time{}, false }

// InTouch says whether heartbeats arrive.
func (r *Renewals) InTouch(now time.Time) bool {
	return !r.beat.IsZero() && now.Sub(r.beat) < r.Trust
}

// MustSettle says whether it has to be looked whether everything is applied.
func (r *Renewals) MustSettle(now time.Time) bool { return r.InTouch(now) && !r.settled }

// Settled takes that a look which began then found everything applied.
func (r *Renewals) Settled(began time.Time) {
	if !r.beat.IsZero() && !began.Before(r.since) {
		r.settled = true
	}
}

// May says whether a challenge that was read before now may be answered.
func (r *Renewals) May(now time.Time) bool { return r.InTouch(now) && r.settled }

// How often the Lease is looked at: a tenth of the shortest fence, and at least this
// often; at most this often; and so in the first moments, to learn soon whether the
// cluster fences.
const (
	tenth   = 10
	least   = time.Second
	early   = tooLong
	Patient = 10 * time.Second
)

// Pace is how long to wait before the next look at the Lease: a fence that is asked for
// wants an answer well before half of it is over, and where none is (0) the look serves
// only to know whether the cluster fences.
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

// What the syncer knows of the other end is given up when it was found wanting this often,
// and for this long: a syncer that stood still for a while draws no conclusion from that.
const (
	enough  = 3
	tooLong = 30 * time.Second
)

// count is for how long, and how often in a row, something was not as it should be.
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

// Acknowledgement is what the syncer knows of the other end of the Lease. The zero value
// knows nothing.
type Acknowledgement struct {
	last string
	// looked: a challenge was seen. The first one that a run of the syncer sees may be that
	// of a controller that is long gone.
	looked, acknowledged, answered bool
	// unheard are the looks that found no challenge after an answer, failures those that
	// could not be made, behind those at which something was not applied.
	unheard, failures, behind count
}

// Observe takes the challenge that is on the Lease.
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

// Answered takes that the last challenge was answered.
func (a *Acknowledgement) Answered() { a.answered = true }

// Failed takes that the Lease could not be read or written.
func (a *Acknowledgement) Failed(now time.Time) { a.failures.note(now) }

// Behind takes whether something is not applied that has to be before the Lease is renewed.
func (a *Acknowledgement) Behind(is bool, now time.Time) {
	if is {
		a.behind.note(now)
	} else {
		a.behind = count{}
	}
}

// Verdict is whether a cluster fences.
type Verdict int

// The verdicts.
const (
	// Undecided: it is too early to say, and what was said before stays true.
	Undecided Verdict = iota
	// Fences: there is somebody who sets challenges.
	Fences
	// Mute: nobody sets challenges, or not any more.
	Mute
	// Unreachable: the Lease cannot be read or written.
	Unreachable
	// Stuck: the Lease is not renewed, because the cluster cannot be brought to what the
	// kcp wants of it.
	Stuck
)

// Verdict says whether the cluster fences, after the syncer has run for a time.
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

// IsAcknowledged says whether somebody has set a new challenge since the syncer runs.
func (a *Acknowledgement) IsAcknowledged() bool { return a.acknowledged }
