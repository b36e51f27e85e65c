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
//
// A syncer that has just started knows nothing of what another run has deleted, and
// takes it for the whole limit: what it may delete accrues over its first window. So a
// syncer that ends and starts over and over deletes no more in a window than the limit,
// and one that begins with too much to delete pauses before it has begun.
type DeleteLimit struct {
	// Count is DefaultDeleteCount by default.
	Count int
	// Fraction, from 0 to 1, is DefaultDeleteFraction by default.
	Fraction float64
	// Window is DefaultDeleteWindow by default.
	Window time.Duration
}

// Validate says what is wrong.
func (l *DeleteLimit) Validate() error {
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
	// began is when this run of the syncer did.
	began time.Time
	// done are the times of the deletions that were let through, oldest first.
	done []time.Time
	// waiting are the deletions that were held back, for a go-ahead while paused and for
	// their time otherwise; granted are those let through by the last go-ahead and not
	// yet done.
	waiting, granted map[Key]bool
	// spent is a go-ahead that was there before the pause, or has been used: it says
	// nothing about what waits now.
	spent string
	// counted: at the last look at the go-ahead all that waits had been found.
	counted bool
}

func newBreaker(limit DeleteLimit, now time.Time) *breaker {
	return &breaker{limit: limit, began: now, waiting: map[Key]bool{}, granted: map[Key]bool{}}
}

// ask says whether an object may be deleted now. If not, it may be asked again after a
// time, or, where that is 0, the deletion waits for a go-ahead. total is how many objects
// there are downstream, goAhead the present value of the Cluster's annotation.
func (b *breaker) ask(key Key, now time.Time, total int, goAhead string) (may bool, again time.Duration) {
	if b.granted[key] {
		delete(b.granted, key)
		return true, 0
	}
	b.waiting[key] = true
	if b.paused {
		return false, 0
	}
	for len(b.done) > 0 && now.Sub(b.done[0]) >= b.limit.Window {
		b.done = b.done[1:]
	}
	// What was deleted a moment ago belongs to the whole that the fraction is of.
	allowed := max(1, b.limit.allows(total+len(b.done)))
	wanted := len(b.done) + len(b.waiting)
	if wanted > allowed {
		b.paused, b.spent = true, goAhead
		return false, 0
	}
	// A deletion accrues in so long, but all have after the first window.
	each := b.limit.Window / time.Duration(allowed)
	if age := now.Sub(b.began); age < b.limit.Window && time.Duration(len(b.done)+1)*each > age {
		return false, time.Duration(wanted)*each - age // when its turn comes, if all others are before it
	}
	delete(b.waiting, key)
	b.done = append(b.done, now)
	return true, 0
}

// forget takes back a request: the object is wanted again, or gone.
func (b *breaker) forget(key Key) {
	delete(b.waiting, key)
	delete(b.granted, key)
}

// resume takes up a pause that another run of the syncer began. spent is the go-ahead that
// run has called an old one; any other was given for the pause.
func (b *breaker) resume(spent string) { b.paused, b.spent = true, spent }

// apply looks at the go-ahead, and returns the deletions that it sets free. It counts
// when it names the number that waits, and was not there before. settled says that
// everything has been looked at since the start: before, the number is one that is passed
// on the way to what waits, and nothing waiting does not mean that nothing is left to
// pause for.
func (b *breaker) apply(goAhead string, settled bool) []Key {
	b.counted = settled
	if !b.paused {
		return nil
	}
	if goAhead != b.spent {
		b.spent = ""
	}
	if !settled {
		return nil
	}
	if len(b.waiting) == 0 {
		b.paused = false
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
