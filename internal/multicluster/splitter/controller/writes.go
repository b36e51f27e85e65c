package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// showTimeout is how long a write counts that the watch does not deliver. The watch never
// delivers an object that another client deleted before the response to its creation arrived.
const showTimeout = 30 * time.Second

// writes contains objects as the API server returned them, by family and name, until the watch
// delivers them in that version or a later one. Without it, a pass could decide on the state
// before its own writes, and count what it moved twice.
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
	// deleted is true if the write was a deletion.
	deleted bool
}

func newWrites() *writes {
	return &writes{families: map[string]map[string]write{}, now: time.Now}
}

// note adds a write.
func (w *writes) note(family string, r *entry, deleted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.families[family] == nil {
		w.families[family] = map[string]write{}
	}
	w.families[family][r.GetName()] = write{entry: r, until: w.now().Add(showTimeout), deleted: deleted}
}

// gone removes an object for which the watch has delivered a deletion.
func (w *writes) gone(family, name string, uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if written, ok := w.families[family][name]; ok && written.GetUID() == uid {
		w.drop(family, name)
	}
}

// drop removes an entry. The caller must hold the lock.
func (w *writes) drop(family, name string) {
	delete(w.families[family], name)
	if len(w.families[family]) == 0 {
		delete(w.families, family)
	}
}

// waits reports whether there are writes of a family that the watch has not delivered.
func (w *writes) waits(family string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.families[family]) > 0
}

// over returns the objects of a family that the watch has delivered, updated by the writes.
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

// isShown reports whether the watch has delivered the written version or a later one.
func isShown(written write, shown *entry) bool {
	if shown == nil {
		return written.deleted
	}
	if written.deleted && written.GetUID() != shown.GetUID() {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(shown.GetResourceVersion(), written.GetResourceVersion())
	if err != nil {
		return true // versions that cannot be compared count as delivered
	}
	if written.deleted {
		return order > 0
	}
	return order >= 0
}
