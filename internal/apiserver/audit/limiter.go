package audit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

// rates bound the number of entries: per source and in total.
type rates struct {
	each, all           rate.Limit
	burstEach, burstAll int
}

var (
	unauthenticatedRates = rates{each: rate.Every(10 * time.Second), burstEach: 20, all: 1, burstAll: 200}
	// A user can cause at most 3,600 entries of denied requests an hour after the first hundred.
	deniedRates = rates{each: 1, burstEach: 100, all: 20, burstAll: 2000}
)

// maxSources bounds the memory that sources can use. The least recently used source is dropped
// first.
const maxSources = 4096

// limiter limits the entries of each source.
type limiter struct {
	rates rates
	now   func() time.Time

	mu      sync.Mutex
	all     *rate.Limiter
	sources *lru.Cache
}

type source struct {
	limit   *rate.Limiter
	skipped int
}

func newLimiter(r rates, now func() time.Time) *limiter {
	return &limiter{rates: r, now: now, all: rate.NewLimiter(r.all, r.burstAll), sources: lru.New(maxSources)}
}

// take reports whether a source may have an entry now, and how many of its entries were skipped
// before.
func (l *limiter) take(name string) (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name = shorten(name, unauthenticatedBounds.text)
	s, found := l.get(name)
	if !found {
		s = &source{limit: rate.NewLimiter(l.rates.each, l.rates.burstEach)}
		l.sources.Add(name, s)
	}
	now := l.now()
	if !s.limit.AllowN(now, 1) || !l.all.AllowN(now, 1) {
		s.skipped++
		return 0, false
	}
	skipped, s.skipped = s.skipped, 0
	return skipped, true
}

func (l *limiter) get(name string) (*source, bool) {
	value, found := l.sources.Get(name)
	if !found {
		return nil, false
	}
	s, ok := value.(*source)
	return s, ok
}
