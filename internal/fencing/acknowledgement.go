package fencing

import "time"

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

// Enforcement is the answer to the question whether a cluster fences.
type Enforcement int

// The enforcements.
const (
	// Undecided: it is too early to decide. The earlier result stays valid.
	Undecided Enforcement = iota
	// Fences: a controller sets challenges.
	Fences
	// NotAcknowledged: no controller sets challenges, or it has stopped.
	NotAcknowledged
	// Unreachable: the Lease cannot be read or written.
	Unreachable
	// Stuck: the Lease is not renewed, because what the kcp wants cannot be applied in the
	// cluster.
	Stuck
)

// Enforcement returns whether the cluster fences. running is how long the syncer has run.
func (a *Acknowledgement) Enforcement(now time.Time, running time.Duration) Enforcement {
	switch {
	case a.failures.isTooMuch(now):
		return Unreachable
	case a.behind.isTooMuch(now):
		return Stuck
	case a.unheard.isTooMuch(now):
		return NotAcknowledged
	case a.acknowledged:
		return Fences
	case running >= tooLong && a.looked:
		return NotAcknowledged
	default:
		return Undecided
	}
}

// IsAcknowledged reports whether a controller has set a new challenge since the syncer started.
func (a *Acknowledgement) IsAcknowledged() bool { return a.acknowledged }
