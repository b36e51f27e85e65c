package syncer

import (
	"errors"
	"strconv"
	"time"
)

// Defaults of a DeleteLimit.
const (
	DefaultDeleteCount    = 100
	DefaultDeleteFraction = 0.1
	DefaultDeleteWindow   = time.Minute
)

// DeleteLimit bounds how many objects may be deleted downstream within a window: the
// larger of a count and a fraction of all that are there. More than that is paused
// until somebody says that it is meant.
type DeleteLimit struct {
	// Count is DefaultDeleteCount by default.
	Count int
	// Fraction, from 0 to 1, is DefaultDeleteFraction by default.
	Fraction float64
	// Window is DefaultDeleteWindow by default.
	Window time.Duration
}

func (l *DeleteLimit) validate() error {
	if l.Count < 0 || l.Fraction < 0 || l.Fraction > 1 || l.Window < 0 {
		return errors.New("the limit of deletions: give a count and a window of at least 0, and a fraction from 0 to 1")
	}
	return nil
}

func (l *DeleteLimit) setDefaults() {
	if l.Count == 0 {
		l.Count = DefaultDeleteCount
	}
	if l.Fraction == 0 {
		l.Fraction = DefaultDeleteFraction
	}
	if l.Window == 0 {
		l.Window = DefaultDeleteWindow
	}
}

func (l *DeleteLimit) allows(total int) int { return max(l.Count, int(l.Fraction*float64(total))) }

// breaker holds deletions back once there are too many. It knows no clock and no
// lock: its caller brings both.
type breaker struct {
	limit  DeleteLimit
	paused bool
	// done are the times of the deletions that were let through, oldest first.
	done []time.Time
	// waiting are the deletions that were held back, granted those let through by the
	// last go-ahead and not yet done.
	waiting, granted map[Key]bool
	// spent is a go-ahead that was there before the pause, or has been used: it says
	// nothing about what waits now.
	spent string
}

func newBreaker(limit DeleteLimit) *breaker {
	return &breaker{limit: limit, waiting: map[Key]bool{}, granted: map[Key]bool{}}
}

// ask says whether an object may be deleted now. total is how many there are
// downstream, goAhead the present value of the Cluster's annotation.
func (b *breaker) ask(key Key, now time.Time, total int, goAhead string) bool {
	if b.granted[key] {
		delete(b.granted, key)
		return true
	}
	if b.paused {
		b.waiting[key] = true
		return false
	}
	for len(b.done) > 0 && now.Sub(b.done[0]) >= b.limit.Window {
		b.done = b.done[1:]
	}
	// What was deleted a moment ago belongs to the whole that the fraction is of.
	if len(b.done) >= b.limit.allows(total+len(b.done)) {
		b.paused, b.spent = true, goAhead
		b.waiting[key] = true
		return false
	}
	b.done = append(b.done, now)
	return true
}

// forget takes back a request: the object is wanted again, or gone.
func (b *breaker) forget(key Key) {
	delete(b.waiting, key)
	delete(b.granted, key)
}

// resume takes up a pause that another run of the syncer began: whatever go-ahead
// there is was given for it.
func (b *breaker) resume() { b.paused, b.spent = true, "" }

// heed looks at the go-ahead, and returns the deletions that it sets free. It counts
// when it names the number that waits, and was not there before. settled says that
// everything has been looked at since the start, so that nothing waiting means that
// nothing is left to pause for.
func (b *breaker) heed(goAhead string, settled bool) []Key {
	if !b.paused {
		return nil
	}
	if goAhead != b.spent {
		b.spent = ""
	}
	if len(b.waiting) == 0 {
		b.paused = !settled
		return nil
	}
	number, err := strconv.Atoi(goAhead)
	if err != nil || b.spent != "" || number != len(b.waiting) {
		return nil
	}
	free := make([]Key, 0, len(b.waiting))
	for key := range b.waiting {
		free = append(free, key)
		b.granted[key] = true
	}
	b.waiting, b.paused, b.done = map[Key]bool{}, false, nil
	return free
}
