package syncer

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// backlog is what there was when the caches of types were filled, and has not been looked
// at since. It is empty at first.
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

// replace has another item stand for one, if that is in the backlog.
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
		b.items = nil // a map keeps the room of all that was ever in it
	}
}

// isEmptyBut says whether nothing is left but objects of these types.
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
