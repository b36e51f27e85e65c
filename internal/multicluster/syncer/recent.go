package syncer

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// recentFor limits how long a response takes precedence over the cache. A watch that is further
// behind has other problems. Without the limit, a response would stay forever if the resource
// versions of the server start again, for example after a backup was restored.
const recentFor = 10 * time.Second

// recent contains the responses to writes of this syncer until the cache has received them.
// Otherwise a pass for another event would write with an outdated version, which is refused, or
// repeat a write.
type recent struct {
	mu sync.Mutex
	// answers is guarded by mu.
	answers map[cache.ObjectName]answer
}

type answer struct {
	object *unstructured.Unstructured
	until  time.Time
}

// note stores a response if the version in the cache is older. The event of the write leads to a
// call of over, so a response does not stay longer than needed.
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

// over returns the newer of the cached object and the stored response. If the cache does not have
// the object, the response is older than a deletion, or the cache has not received the object.
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

// isNewer reports whether a response is newer than the cached object. It returns false if the
// versions are not numbers and cannot be compared. When the last finalizer is removed, the
// response has the version that the object had before.
func isNewer(answer, cached *unstructured.Unstructured) bool {
	order, err := resourceversion.CompareResourceVersion(answer.GetResourceVersion(), cached.GetResourceVersion())
	return err == nil && (order > 0 || order == 0 && answer.GetDeletionTimestamp() != nil && len(answer.GetFinalizers()) == 0)
}
