package follower

import (
	"slices"
	"sync"
	"time"

	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/reconcile"
)

// memory is the state that is only in memory. After a restart it is empty. That costs only time.
type memory struct {
	mu sync.Mutex
	// leaving is since when a follower has been where nothing needs it. mu guards it.
	leaving map[key.Follower]time.Time
	// ahead is until when a follower stays in a cluster for a leaf that is about to be created
	// there. mu guards it.
	ahead map[key.Follower]map[string]time.Time
}

func newMemory() *memory {
	return &memory{leaving: map[key.Follower]time.Time{}, ahead: map[key.Follower]map[string]time.Time{}}
}

// leaves returns how much longer a follower stays where nothing needs it.
func (m *memory) leaves(k key.Follower, now time.Time, delay time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	since, ok := m.leaving[k]
	if !ok {
		since = now
		m.leaving[k] = now
	}
	return max(0, since.Add(delay).Sub(now))
}

// left records that a follower is no longer leaving.
func (m *memory) left(k key.Follower) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leaving, k)
}

// gone removes the state of a follower that no longer exists.
func (m *memory) gone(k key.Follower) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leaving, k)
	delete(m.ahead, k)
}

// aheadFor is how long a follower stays where it was sent before its leaf. It is much longer than
// creating a leaf takes, even on a busy kcp. It is limited, because creating the leaf may fail.
const aheadFor = time.Minute

// await makes a follower stay in a cluster for a leaf that is about to be created there.
func (m *memory) await(k key.Follower, cluster string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ahead[k] == nil {
		m.ahead[k] = map[string]time.Time{}
	}
	m.ahead[k][cluster] = now.Add(aheadFor)
}

// awaited returns the clusters where a follower stays for a leaf that is not in the cache yet, and
// when to check again. It removes the other clusters from the memory.
func (m *memory) awaited(k key.Follower, seen []string, now time.Time) (clusters []string, again time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for cluster, until := range m.ahead[k] {
		left := until.Sub(now)
		if left <= 0 || slices.Contains(seen, cluster) {
			delete(m.ahead[k], cluster)
			continue
		}
		clusters = append(clusters, cluster)
		again = reconcile.Soonest(again, left)
	}
	if len(m.ahead[k]) == 0 {
		delete(m.ahead, k)
	}
	return clusters, again
}
