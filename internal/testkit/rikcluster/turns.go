package rikcluster

import (
	"slices"
	"strings"
	"sync"
)

// sideBySide is the number of simultaneous tests in separate processes if -parallel is not set.
// They mostly wait. With more of them, two cores would miss deadlines.
const sideBySide = 4

// queue orders the tests of this process.
var queue = newTurns(sideBySide, nil)

// turns assigns places to tests. The longest tests go first, because one that begins last would
// delay the end of all.
type turns struct {
	// longest lists names of tests, the longest first.
	longest []string

	mu      sync.Mutex
	changed *sync.Cond
	// mu guards free, announced and waiting. announced has the longest tests that will request a
	// place soon. waiting has those that have requested one, in order.
	free      int
	announced map[string]bool
	waiting   []*turn
}

// turn is a waiting test.
type turn struct{ rank int }

func newTurns(places int, longest []string) *turns {
	t := &turns{longest: longest, free: places, announced: map[string]bool{}}
	t.changed = sync.NewCond(&t.mu)
	return t
}

// rank returns the rank of a test. Its subtests have the same.
func (t *turns) rank(name string) int {
	whole, _, _ := strings.Cut(name, "/")
	if i := slices.Index(t.longest, whole); i >= 0 {
		return i
	}
	return len(t.longest)
}

// announce announces that a test will take a place, independently of the others.
func (t *turns) announce(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rank(name) < len(t.longest) {
		t.announced[name] = true
	}
}

// take waits for a place. The caller must give it back.
func (t *turns) take(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.announced, name)
	own := &turn{t.rank(name)}
	at, _ := slices.BinarySearchFunc(t.waiting, own, func(other, own *turn) int {
		if other.rank <= own.rank {
			return -1 // equal ranks: first come, first served
		}
		return 1
	})
	t.waiting = slices.Insert(t.waiting, at, own)
	t.changed.Broadcast()
	for t.free == 0 || t.waiting[0] != own || t.isAnnouncedBefore(own.rank) {
		t.changed.Wait()
	}
	t.waiting = t.waiting[1:]
	t.free--
	t.changed.Broadcast()
}

// isAnnouncedBefore must be called with the lock held.
func (t *turns) isAnnouncedBefore(rank int) bool {
	for name := range t.announced {
		if t.rank(name) < rank {
			return true
		}
	}
	return false
}

// give returns a place.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	t.changed.Broadcast()
}
