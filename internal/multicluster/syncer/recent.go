package syncer

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// recentFor bounds how long an answer counts for more than the cache. A watch that is
// later than that has other troubles, and a server whose versions began anew, as after a
// restored backup, would never be seen to overtake the answer.
const recentFor = 10 * time.Second

// recent keeps what a server answered to our own writes until the cache has heard of
// it. A pass that comes earlier, because of another event, would otherwise write with a
// version that is refused, or write once more what is written.
type recent struct {
	mu sync.Mutex
	// answers is guarded by mu.
	answers map[cache.ObjectName]answer
}

type answer struct {
	object *unstructured.Unstructured
	until  time.Time
}

// note keeps an answer, if what the cache has is older. The event that follows the
// write has over asked, and so no answer outlives its use.
func (r *recent) note(cached, object *unstructured.Unstructured, now time.Time) {
	if cached == nil || !isNewer(object, cached) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answers == nil {
		r.answers = map[cache.ObjectName]answer{}
	}
	r.answers[cache.MetaObjectToName(object)] = answer{object, now.Add(recentFor)}
}

// over is the newer of what a cache has and of what was answered. That the cache has
// none says that something happened after the answer, or that it has heard of nothing.
func (r *recent) over(cached *unstructured.Unstructured, name cache.ObjectName, now time.Time) *unstructured.Unstructured {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, found := r.answers[name]
	switch {
	case !found:
		return cached
	case cached != nil && now.Before(last.until) && isNewer(last.object, cached):
		return last.object
	default:
		delete(r.answers, name)
		return cached
	}
}

// isNewer is false, too, when versions are no numbers: then nobody can say. The object
// whose last finalizer was taken is answered with the version that it had.
func isNewer(answer, cached *unstructured.Unstructured) bool {
	order, err := resourceversion.CompareResourceVersion(answer.GetResourceVersion(), cached.GetResourceVersion())
	return err == nil && (order > 0 || order == 0 && answer.GetDeletionTimestamp() != nil && len(answer.GetFinalizers()) == 0)
}
