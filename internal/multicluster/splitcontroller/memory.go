package splitcontroller

import (
	"sync"
	"time"
)

// memory is what the controller remembers of what it saw. A new one begins without, and
// loses nothing by it but time and a second event.
type memory struct {
	mu sync.Mutex
	// leaving is guarded by mu: since when something is where nothing needs it.
	leaving map[needKey]time.Time
	// told is guarded by mu: what was said last about a root.
	told map[rootKey]map[string]string
}

func newMemory() *memory {
	return &memory{leaving: map[needKey]time.Time{}, told: map[rootKey]map[string]string{}}
}

// leaves says how much longer something is left where nothing needs it.
func (m *memory) leaves(key needKey, now time.Time, delay time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	since, ok := m.leaving[key]
	if !ok {
		since = now
		m.leaving[key] = now
	}
	return max(0, since.Add(delay).Sub(now))
}

// left forgets what leaves.
func (m *memory) left(key needKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leaving, key)
}

// tell says whether something about a root is news; nothing to say is none.
func (m *memory) tell(key rootKey, subject, text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.told[key][subject] == text {
		return false
	}
	if m.told[key] == nil {
		m.told[key] = map[string]string{}
	}
	m.told[key][subject] = text
	return text != ""
}

// forget drops what was said about a root.
func (m *memory) forget(key rootKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.told, key)
}
