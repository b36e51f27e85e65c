package rikcluster

import (
	"slices"
	"strings"
	"sync"
)

// sideBySide is how many tests run at once in processes of their own where -parallel does
// not say it. Most of their time they wait; with more of them two cores are late for
// deadlines.
const sideBySide = 4

// queue has those of this process's tests take turns.
var queue = newTurns(sideBySide, nil)

// turns gives tests their places. Those that take longest go first: one of them, begun
// last, would have everything wait for it.
type turns struct {
	// longest are the names of tests, the longest first.
	longest []string

	mu      sync.Mutex
	changed *sync.Cond
	// free, announced and waiting are guarded by mu. announced are longest tests that will
	// ask for a place soon, waiting are those who have, in their order.
	free      int
	announced map[string]bool
	waiting   []*turn
}

// turn is one that waits.
type turn struct{ rank int }

func newTurns(places int, longest []string) *turns {
	t := &turns{longest: longest, free: places, announced: map[string]bool{}}
	t.changed = sync.NewCond(&t.mu)
	return t
}

// rank of a test; its subtests have the same.
func (t *turns) rank(name string) int {
	whole, _, _ := strings.Cut(name, "/")
	if i := slices.Index(t.longest, whole); i >= 0 {
		return i
	}
	return len(t.longest)
}

// announce says that a test will take a place, whatever the others do.
func (t *turns) announce(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rank(name) < len(t.longest) {
		t.announced[name] = true
	}
}

// take waits for a place, which the caller has to give back.
func (t *turns) take(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.announced, name)
	own := &turn{t.rank(name)}
	at, _ := slices.BinarySearchFunc(t.waiting, own, func(other, own *turn) int {
		if other.rank <= own.rank {
			return -1 // among equals, who came first
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

// isAnnouncedBefore is called with the lock held.
func (t *turns) isAnnouncedBefore(rank int) bool {
	for name := range t.announced {
		if t.rank(name) < rank {
			return true
		}
	}
	return false
}

// give gives a place back.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	t.changed.Broadcast()
}
