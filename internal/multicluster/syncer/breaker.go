package syncer

import (
	"errors"
	"strconv"
	"time"
)

// The defaults of a DeleteLimit.
const (
	DefaultDeleteCount    = 100
	DefaultDeleteFraction = 0.1
	DefaultDeleteWindow   = time.Minute
)

// DeleteLimit limits how many objects may be deleted downstream within a window. The limit is the
// larger of a count and a fraction of all objects there. More deletions pause until the user
// confirms them.
//
// A syncer that has just started does not know what an earlier run has deleted. It assumes that
// the earlier run has used the whole limit. Its own limit therefore grows during the first
// window. A syncer that restarts again and again deletes no more in a window than the limit. One
// that starts with too many deletions pauses before the first one.
type DeleteLimit struct {
	// Count is the limit as a number of objects. 0 means DefaultDeleteCount.
	Count int
	// Fraction is the limit as a part of all objects, from 0 to 1. 0 means DefaultDeleteFraction.
	Fraction float64
	// Window is the time in which the limit applies. 0 means DefaultDeleteWindow.
	Window time.Duration
}

// Validate returns an error if a field is out of its range.
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

// breaker pauses deletions when there are too many. It has no clock and no lock. The caller
// provides both.
type breaker struct {
	limit  DeleteLimit
	paused bool
	// began is when this run of the syncer started.
	began time.Time
	// done are the times of the deletions that were allowed, oldest first.
	done []time.Time
	// waiting are the deletions that were not allowed yet. While paused, they wait for a
	// go-ahead, and otherwise for time to pass. granted are the deletions that the last go-ahead
	// has allowed and that are not done yet.
	waiting, granted map[Key]bool
	// spent is a go-ahead that existed before the pause or was used already. It does not apply to
	// the deletions that wait now.
	spent string
	// counted is true if all waiting deletions were known when the go-ahead was last checked.
	counted bool
}

func newBreaker(limit DeleteLimit, now time.Time) *breaker {
	return &breaker{limit: limit, began: now, waiting: map[Key]bool{}, granted: map[Key]bool{}}
}

// ask returns whether an object may be deleted now. If not, and again is not 0, the caller may
// ask again after that time. If again is 0, the deletion waits for a go-ahead. total is the
// number of objects downstream. goAhead is the current value of the Cluster's annotation.
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
	// The fraction is of all objects, including those that were just deleted.
	allowed := max(1, b.limit.allows(total+len(b.done)))
	wanted := len(b.done) + len(b.waiting)
	if wanted > allowed {
		b.paused, b.spent = true, goAhead
		return false, 0
	}
	// During the first window, one more deletion is allowed after each of these times.
	each := b.limit.Window / time.Duration(allowed)
	if age := now.Sub(b.began); age < b.limit.Window && time.Duration(len(b.done)+1)*each > age {
		// the time until its turn, if all other deletions come first
		return false, time.Duration(wanted)*each - age
	}
	delete(b.waiting, key)
	b.done = append(b.done, now)
	return true, 0
}

// forget removes a request, because the object is wanted again or is gone.
func (b *breaker) forget(key Key) {
	delete(b.waiting, key)
	delete(b.granted, key)
}

// resume continues a pause that an earlier run of the syncer began. spent is the go-ahead that
// the earlier run had marked as an old one. Any other go-ahead was given for this pause.
func (b *breaker) resume(spent string) { b.paused, b.spent = true, spent }

// apply checks the go-ahead, and returns the deletions that it allows. A go-ahead is valid if it
// is the number of waiting deletions and did not exist before the pause. settled is true if
// everything has been processed since the start. Before that, the number of waiting deletions is
// still growing, so a go-ahead may match it by accident. Also, an empty list does not end the
// pause yet.
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
