package controller

import (
	"slices"
	"sync"
	"time"

	"rik.dev/rik/internal/reconcile"
)

// memory is what the controller remembers of what it saw. A new one begins without, and
// loses nothing by it but time and a second event.
type memory struct {
	mu sync.Mutex
	// leaving is guarded by mu: since when something is where nothing needs it.
	leaving map[needKey]time.Time
	// ahead is guarded by mu: until when something stays in a cluster for a leaf that is
	// about to be made there.
	ahead map[needKey]map[string]time.Time
	// reported is guarded by mu: what was said last about a root.
	reported map[rootKey]map[string]string
}

func newMemory() *memory {
	return &memory{leaving: map[needKey]time.Time{}, ahead: map[needKey]map[string]time.Time{}, reported: map[rootKey]map[string]string{}}
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

// left forgets that something leaves.
func (m *memory) left(key needKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leaving, key)
}

// gone forgets something that is no more.
func (m *memory) gone(key needKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leaving, key)
	delete(m.ahead, key)
}

// aheadFor is how long something stays where it was sent ahead of a leaf that is not seen:
// many times what making a leaf takes, on a busy kcp too, and not for good, for making it may
// fail.
const aheadFor = time.Minute

// await keeps something in a cluster for a leaf that is about to be made there.
func (m *memory) await(key needKey, cluster string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ahead[key] == nil {
		m.ahead[key] = map[string]time.Time{}
	}
	m.ahead[key][cluster] = now.Add(aheadFor)
}

// awaited are the clusters where something stays for a leaf that is not seen there yet, and
// when to look again. It forgets the others.
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

// report says whether something about a root is news; nothing to say is none.
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

// forget drops what was said about a root.
func (m *memory) forget(key rootKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.reported, key)
}
