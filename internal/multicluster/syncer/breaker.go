package syncer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// The defaults of a DeleteLimit.
const (
	DefaultDeleteCount    = 100
	DefaultDeleteFraction = 0.1
	DefaultDeleteWindow   = time.Minute
)

// clusterFactor is the limit of all namespaces together, as a multiple of the limit of one. With
// 2, one namespace that uses its whole limit leaves as much to the others.
const clusterFactor = 2

// DeleteLimit limits how many objects may be deleted downstream within a window. The limit of each
// upstream namespace is the larger of a count and a fraction of all objects downstream. Objects
// without a namespace have a limit of their own. All namespaces together have a limit of
// clusterFactor times that. More deletions pause until the user confirms them: those of the
// namespace that exceeds its limit, or those of all namespaces.
//
// A syncer that has just started does not know what an earlier run has deleted. It assumes that
// the earlier run has used all limits. Its own limits therefore grow during the first window. A
// syncer that restarts again and again deletes no more in a window than the limits. One that
// starts with too many deletions pauses before the first one.
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
	l.Count = cmp.Or(l.Count, DefaultDeleteCount)
	l.Fraction = cmp.Or(l.Fraction, DefaultDeleteFraction)
	l.Window = cmp.Or(l.Window, DefaultDeleteWindow)
}

// allows returns the limit of one namespace. It is at least 1.
func (l *DeleteLimit) allows(total int) int {
	return max(1, l.Count, int(l.Fraction*float64(total)))
}

// breaker pauses deletions when there are too many: in one namespace, or in all of them. It has
// no clock and no lock. The caller provides both.
//
// A deletion waits until it is allowed. If it is paused, it waits for a go-ahead, and otherwise
// for time to pass.
type breaker struct {
	limit DeleteLimit
	// allowed is the limit of one namespace, as last computed.
	allowed int
	// began is when this run of the syncer started.
	began time.Time
	// paused is true while the deletions of all namespaces are paused.
	paused bool
	// namespaces contains the namespaces upstream that have anything to count. The key "" is for
	// objects without a namespace.
	namespaces map[string]*deletions
	// done are the deletions within the window that were allowed, oldest first.
	done []deletion
	// open is the number of waiting deletions in namespaces that are not paused themselves.
	open int
	// granted are the deletions that a go-ahead has allowed and that are not done yet.
	granted map[Key]bool
	// spent is a go-ahead that existed before the last pause or was used already. It does not
	// apply to the deletions that wait now.
	spent string
	// counted is true if all waiting deletions were known when the go-ahead was last checked.
	counted bool
}

// deletion is a deletion that was allowed.
type deletion struct {
	namespace string
	at        time.Time
}

// deletions are the deletions of one namespace.
type deletions struct {
	// paused is true while the deletions of this namespace are paused.
	paused bool
	// done is the number of entries for this namespace in the breaker's list.
	done int
	// waiting are the deletions that were not allowed yet.
	waiting map[Key]bool
}

func newBreaker(limit DeleteLimit, now time.Time) *breaker {
	return &breaker{
		limit: limit, allowed: limit.allows(0), began: now,
		namespaces: map[string]*deletions{}, granted: map[Key]bool{},
	}
}

// ask returns whether an object may be deleted now. If not, and again is not 0, the caller may
// ask again after that time. If again is 0, the deletion waits for a go-ahead. total is the
// number of objects downstream. goAhead is the current value of the Cluster's annotation.
func (b *breaker) ask(key Key, now time.Time, total int, goAhead string) (may bool, again time.Duration) {
	if b.granted[key] {
		delete(b.granted, key)
		return true, 0
	}
	b.expire(now)
	// The fraction is of all objects, including those that were just deleted.
	b.allowed = b.limit.allows(total + len(b.done))
	n := b.wait(key)
	wanted, wantedOfAll := n.done+len(n.waiting), len(b.done)+b.open
	switch {
	case b.paused || n.paused:
		return false, 0
	case wanted > b.allowed:
		n.paused, b.spent = true, goAhead
		b.open -= len(n.waiting)
		return false, 0
	case wantedOfAll > clusterFactor*b.allowed:
		b.paused, b.spent = true, goAhead
		return false, 0
	}
	age := now.Sub(b.began)
	again = max(b.turn(age, n.done, wanted, b.allowed), b.turn(age, len(b.done), wantedOfAll, clusterFactor*b.allowed))
	if again > 0 {
		return false, again
	}
	n.done++
	b.done = append(b.done, deletion{key.Namespace, now})
	b.drop(key)
	return true, 0
}

// turn returns how long a deletion must wait because of the start, and 0 if it need not wait.
// During the first window, one more deletion is allowed after each of the same times. The result
// is the time until the deletion's turn, if all other wanted deletions come first.
func (b *breaker) turn(age time.Duration, done, wanted, limit int) time.Duration {
	each := b.limit.Window / time.Duration(limit)
	if age >= b.limit.Window || time.Duration(done+1)*each <= age {
		return 0
	}
	return time.Duration(wanted)*each - age
}

// expire removes the deletions that were a window ago or earlier.
func (b *breaker) expire(now time.Time) {
	for len(b.done) > 0 && now.Sub(b.done[0].at) >= b.limit.Window {
		first := b.done[0].namespace
		b.done = b.done[1:]
		b.namespaces[first].done--
		b.dropEmpty(first)
	}
}

// wait adds a waiting deletion, and returns those of its namespace.
func (b *breaker) wait(key Key) *deletions {
	n := b.of(key.Namespace)
	if !n.waiting[key] {
		n.waiting[key] = true
		if !n.paused {
			b.open++
		}
	}
	return n
}

// drop removes a waiting deletion.
func (b *breaker) drop(key Key) {
	n := b.namespaces[key.Namespace]
	if n == nil || !n.waiting[key] {
		return
	}
	delete(n.waiting, key)
	if !n.paused {
		b.open--
	}
	b.dropEmpty(key.Namespace)
}

func (b *breaker) of(namespace string) *deletions {
	n := b.namespaces[namespace]
	if n == nil {
		n = &deletions{waiting: map[Key]bool{}}
		b.namespaces[namespace] = n
	}
	return n
}

// dropEmpty removes a namespace that has nothing to count any more, so that the memory of all past
// namespaces does not stay in use.
func (b *breaker) dropEmpty(namespace string) {
	if n := b.namespaces[namespace]; !n.paused && n.done == 0 && len(n.waiting) == 0 {
		delete(b.namespaces, namespace)
	}
}

// forget removes a request, because the object is wanted again or is gone.
func (b *breaker) forget(key Key) {
	b.drop(key)
	delete(b.granted, key)
}

// holds returns whether the deletions of a namespace are paused.
func (b *breaker) holds(namespace string) bool {
	n := b.namespaces[namespace]
	return b.paused || n != nil && n.paused
}

// held returns the numbers of paused deletions by namespace. It is empty if none are paused. A
// paused namespace whose deletions are not known yet has the number 0.
func (b *breaker) held() map[string]int {
	held := map[string]int{}
	for namespace, n := range b.namespaces {
		if n.paused || b.paused && len(n.waiting) > 0 {
			held[namespace] = len(n.waiting)
		}
	}
	return held
}

// isPaused returns whether the deletions of at least one namespace are paused.
func (b *breaker) isPaused() bool {
	if b.paused {
		return true
	}
	for _, n := range b.namespaces {
		if n.paused {
			return true
		}
	}
	return false
}

// number returns the number of paused deletions.
func (b *breaker) number() int {
	number := 0
	for _, waiting := range b.held() {
		number += waiting
	}
	return number
}

// exceeded says which limit was exceeded by the deletions of a paused namespace.
func (b *breaker) exceeded(namespace string) string {
	switch {
	case b.paused:
		return fmt.Sprintf("all namespaces together exceeded their limit of %d deletions within %s", clusterFactor*b.allowed, b.limit.Window)
	case namespace == "":
		return fmt.Sprintf("objects without a namespace exceeded their limit of %d deletions within %s", b.allowed, b.limit.Window)
	}
	return fmt.Sprintf("the namespace exceeded its limit of %d deletions within %s", b.allowed, b.limit.Window)
}

// resume continues the pauses that an earlier run of the syncer began: those of some namespaces,
// or of all if namespaces is nil. spent is the go-ahead that the earlier run had marked as an old
// one. Any other go-ahead was given for these pauses.
func (b *breaker) resume(spent string, namespaces []string) {
	b.paused, b.spent = namespaces == nil, spent
	for _, namespace := range namespaces {
		n := b.of(namespace)
		if !n.paused {
			n.paused = true
			b.open -= len(n.waiting)
		}
	}
}

// apply checks the go-ahead, and returns the deletions that it allows. A go-ahead is valid if it
// is the number of paused deletions and did not exist before the last pause. settled is true if
// everything has been processed since the start. Before that, the number of paused deletions is
// still growing, so a go-ahead may match it by accident. Also, an empty list does not end a
// pause yet.
func (b *breaker) apply(goAhead string, settled bool) []Key {
	b.counted = settled
	if !b.isPaused() {
		return nil
	}
	if goAhead != b.spent {
		b.spent = ""
	}
	if !settled {
		return nil
	}
	b.endEmpty()
	waiting := b.number()
	if number, err := strconv.Atoi(goAhead); err != nil || b.spent != "" || number != waiting || waiting == 0 {
		return nil
	}
	b.spent = goAhead
	return b.release()
}

// endEmpty ends the pauses in which no deletions wait any more.
func (b *breaker) endEmpty() {
	waiting := 0
	for namespace, n := range b.namespaces {
		waiting += len(n.waiting)
		if len(n.waiting) == 0 {
			n.paused = false
			b.dropEmpty(namespace)
		}
	}
	if waiting == 0 {
		b.paused = false
	}
}

// release allows all paused deletions and ends the pauses. The namespaces may use their whole
// limits again.
func (b *breaker) release() []Key {
	var free []Key
	held := b.held()
	for namespace := range held {
		n := b.namespaces[namespace]
		for key := range n.waiting {
			free = append(free, key)
			b.granted[key] = true
		}
		if !n.paused {
			b.open -= len(n.waiting)
		}
		n.paused, n.waiting = false, map[Key]bool{}
	}
	all := b.paused
	b.paused = false
	b.done = slices.DeleteFunc(b.done, func(d deletion) bool {
		_, was := held[d.namespace]
		if all || was {
			b.namespaces[d.namespace].done--
		}
		return all || was
	})
	for namespace := range b.namespaces {
		b.dropEmpty(namespace)
	}
	return free
}
