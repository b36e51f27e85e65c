package index

import (
	"reflect"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Objects is the view of a kind with so few objects that it needs no index. As in Instances, it
// keeps the newest version, and its objects must not be changed.
type Objects[T client.Object] struct {
	listeners []func(before, after T)

	mu sync.RWMutex
	// mu guards byKey and seen. seen is as in Instances.
	byKey map[types.NamespacedName]T
	seen  uint64
}

// NewObjects creates an empty view.
func NewObjects[T client.Object]() *Objects[T] {
	return &Objects[T]{byKey: map[types.NamespacedName]T{}}
}

// Subscribe adds a listener. Call it before the first change. The listener must not block.
// before is nil for a new object, and after is nil for a deleted one.
func (v *Objects[T]) Subscribe(l func(before, after T)) { v.listeners = append(v.listeners, l) }

// Observe applies an object from the watch.
func (v *Objects[T]) Observe(o T) { v.take(o, true) }

// Put applies the response to a write.
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

// Remove applies a deletion from the watch.
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

// Get returns the object with a name, or the zero value (nil).
func (v *Objects[T]) Get(key types.NamespacedName) T {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.byKey[key]
}

// All returns every object in no order.
func (v *Objects[T]) All() []T {
	v.mu.RLock()
	defer v.mu.RUnlock()
	out := make([]T, 0, len(v.byKey))
	for _, o := range v.byKey {
		out = append(out, o)
	}
	return out
}

// None reports whether an object from a listener or from Get is absent.
func None[T client.Object](o T) bool {
	v := reflect.ValueOf(o)
	return !v.IsValid() || v.IsNil()
}

// numberOf parses a resource version. The Kubernetes API guarantees since version 1.35 that it
// is a number.
func numberOf(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
