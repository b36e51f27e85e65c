package controller

import "sync"

// memory is the state that the controller has only in memory. After a restart it is empty. That
// costs only duplicate events.
type memory struct {
	mu sync.Mutex
	// reported is the last report about a root, by subject. mu guards it.
	reported map[rootKey]map[string]string
}

func newMemory() *memory {
	return &memory{reported: map[rootKey]map[string]string{}}
}

// report reports whether a text about a root is new. An empty text is never new.
func (m *memory) report(key rootKey, subject, text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reported[key][subject] == text {
		return false
	}
	if m.reported[key] == nil {
		m.reported[key] = map[string]string{}
	}
	m.reported[key][subject] = text
	return text != ""
}

// forget removes the reports about a root.
func (m *memory) forget(key rootKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.reported, key)
}
