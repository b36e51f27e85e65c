package index

import (
	"reflect"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Objects is the view of one kind of which there are few enough to need no
// index. As in Instances the newest version wins, and nothing in it may be
// changed.
type Objects[T client.Object] struct {
	listeners []func(before, after T)

	mu sync.RWMutex
	// byKey and seen are guarded by mu; seen is as in Instances.
	byKey map[types.NamespacedName]T
	seen  uint64
}

// NewObjects makes an empty view.
func NewObjects[T client.Object]() *Objects[T] {
	return &Objects[T]{byKey: map[types.NamespacedName]T{}}
}

// Subscribe adds a listener, before the first change. It must not block;
// before is nil for a new object and after for one that is gone.
func (v *Objects[T]) Subscribe(l func(before, after T)) { v.listeners = append(v.listeners, l) }

// Observe takes what the watch delivered.
func (v *Objects[T]) Observe(o T) { v.take(o, true) }

// Put takes the answer to a write.
func (v *Objects[T]) Put(o T) { v.take(o, false) }

func (v *Objects[T]) take(o T, watched bool) {
	version := numberOf(o.GetResourceVersion())
	key := client.ObjectKeyFromObject(o)
	v.mu.Lock()
	present, exists := v.byKey[key]
	if watched {
		v.seen = max(v.seen, version)
	}
	if exists && numberOf(present.GetResourceVersion()) >= version || !exists && !watched && version <= v.seen {
		v.mu.Unlock()
		return
	}
	v.byKey[key] = o
	v.mu.Unlock()
	v.notify(present, o)
}

// Remove takes a deletion that the watch delivered.
func (v *Objects[T]) Remove(o T) {
	key := client.ObjectKeyFromObject(o)
	v.mu.Lock()
	v.seen = max(v.seen, numberOf(o.GetResourceVersion()))
	present, exists := v.byKey[key]
	exists = exists && present.GetUID() == o.GetUID()
	if exists {
		delete(v.byKey, key)
	}
	v.mu.Unlock()
	if exists {
		var none T
		v.notify(present, none)
	}
}

func (v *Objects[T]) notify(before, after T) {
	for _, l := range v.listeners {
		l(before, after)
	}
}

// Get finds an object by name; the zero value (nil) when there is none.
func (v *Objects[T]) Get(key types.NamespacedName) T {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.byKey[key]
}

// All lists every object in no order.
func (v *Objects[T]) All() []T {
	v.mu.RLock()
	defer v.mu.RUnlock()
	out := make([]T, 0, len(v.byKey))
	for _, o := range v.byKey {
		out = append(out, o)
	}
	return out
}

// None says whether an object of a listener or a look-up is absent.
func None[T client.Object](o T) bool {
	v := reflect.ValueOf(o)
	return !v.IsValid() || v.IsNil()
}

// numberOf reads a resource version as the number that it is by contract since
// Kubernetes 1.35.
func numberOf(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
