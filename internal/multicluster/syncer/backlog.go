package syncer

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// backlog contains the objects that were in the caches when these were filled and have not been
// processed since. It is empty at first.
type backlog struct {
	mu    sync.Mutex
	items map[item]bool
}

func (b *backlog) add(i item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.items == nil {
		b.items = map[item]bool{}
	}
	b.items[i] = true
}

// replace replaces an item by another one, if it is in the backlog.
func (b *backlog) replace(i, other item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.items[i] {
		delete(b.items, i)
		b.items[other] = true
	}
}

func (b *backlog) looked(i item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.items, i)
	if len(b.items) == 0 {
		b.items = nil // a map does not shrink, so the memory of all past items stays in use
	}
}

// isEmptyBut reports whether the backlog contains only objects of the given types.
func (b *backlog) isEmptyBut(types map[schema.GroupResource]bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.items {
		if !types[i.Type] {
			return false
		}
	}
	return true
}
