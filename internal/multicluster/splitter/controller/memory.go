package controller

import (
	"slices"
	"sync"
	"time"

	"rik.dev/rik/internal/reconcile"
)

// memory is the state that the controller has only in memory. After a restart it is empty. That
// costs only time and duplicate events.
type memory struct {
	mu sync.Mutex
	// leaving is since when an object has been where nothing needs it. mu guards it.
	leaving map[needKey]time.Time
	// ahead is until when an object stays in a cluster for a leaf that is about to be created
	// there. mu guards it.
	ahead map[needKey]map[string]time.Time
	// reported is the last report about a root, by subject. mu guards it.
	reported map[rootKey]map[string]string
}

func newMemory() *memory {
	return &memory{leaving: map[needKey]time.Time{}, ahead: map[needKey]map[string]time.Time{}, reported: map[rootKey]map[string]string{}}
}

// leaves returns how much longer an object stays where nothing needs it.
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

// left records that an object is no longer leaving.
func (m *memory) left(key needKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leaving, key)
}

// gone removes the state of an object that no longer exists.
func (m *memory) gone(key needKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leaving, key)
	delete(m.ahead, key)
}

// aheadFor is how long an object stays where it was sent before its leaf. It is much longer than
// creating a leaf takes, even on a busy kcp. It is limited, because creating the leaf may fail.
const aheadFor = time.Minute

// await makes an object stay in a cluster for a leaf that is about to be created there.
func (m *memory) await(key needKey, cluster string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ahead[key] == nil {
		m.ahead[key] = map[string]time.Time{}
	}
	m.ahead[key][cluster] = now.Add(aheadFor)
}

// awaited returns the clusters where an object stays for a leaf that is not in the cache yet, and
// when to check again. It removes the other clusters from the memory.
func (m *memory) awaited(key needKey, seen []string, now time.Time) (clusters []string, again time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for cluster, until := range m.ahead[key] {
		left := until.Sub(now)
		if left <= 0 || slices.Contains(seen, cluster) {
			delete(m.ahead[key], cluster)
			continue
		}
		clusters = append(clusters, cluster)
		again = reconcile.Soonest(again, left)
	}
	if len(m.ahead[key]) == 0 {
		delete(m.ahead, key)
	}
	return clusters, again
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
