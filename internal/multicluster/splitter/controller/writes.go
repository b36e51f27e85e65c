package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// showTimeout is how long a write counts that no watch shows. An object that was made
// and deleted by somebody else before the answer came is never shown.
const showTimeout = 30 * time.Second

// writes are objects as the API server gave them back, by family and name, until the
// watch shows them so or later. A decision from what was there before one's own writes
// would count what it moved twice.
type writes struct {
	mu sync.Mutex
	// families is guarded by mu.
	families map[string]map[string]write
	now      func() time.Time
}

// write is an object as it was written.
type write struct {
	*entry
	until time.Time
	// deleted: it was deleted in this version.
	deleted bool
}

func newWrites() *writes {
	return &writes{families: map[string]map[string]write{}, now: time.Now}
}

// note keeps what was written.
func (w *writes) note(family string, r *entry, deleted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.families[family] == nil {
		w.families[family] = map[string]write{}
	}
	w.families[family][r.GetName()] = write{entry: r, until: w.now().Add(showTimeout), deleted: deleted}
}

// gone forgets an object that the watch says is no more.
func (w *writes) gone(family, name string, uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if written, ok := w.families[family][name]; ok && written.GetUID() == uid {
		w.drop(family, name)
	}
}

// drop is called with the lock held.
func (w *writes) drop(family, name string) {
	delete(w.families[family], name)
	if len(w.families[family]) == 0 {
		delete(w.families, family)
	}
}

// waits says whether something of a family was written that the watch has not shown.
func (w *writes) waits(family string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.families[family]) > 0
}

// over puts what was written over what a watch has shown of a family.
func (w *writes) over(family string, shown map[string]*entry) map[string]*entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, written := range w.families[family] {
		if !w.now().Before(written.until) || isShown(written, shown[name]) {
			w.drop(family, name)
			continue
		}
		shown[name] = written.entry
	}
	return shown
}

// isShown says whether what a watch shows is as it was written, or later.
func isShown(written write, shown *entry) bool {
	if shown == nil {
		return written.deleted
	}
	if written.deleted && written.GetUID() != shown.GetUID() {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(shown.GetResourceVersion(), written.GetResourceVersion())
	if err != nil {
		return true // what cannot be compared is not held against the watch
	}
	if written.deleted {
		return order > 0
	}
	return order >= 0
}
