// Package finalstate reads the objects that informers pass to their handlers. An informer that
// missed a deletion passes a cache.DeletedFinalStateUnknown, which contains the last state that
// it has seen.
package finalstate

import "k8s.io/client-go/tools/cache"

// Of returns the object that an informer passed, or its last known state if the informer missed
// the deletion. That state can be nil.
func Of(passed any) any {
	if missed, ok := passed.(cache.DeletedFinalStateUnknown); ok {
		return missed.Obj
	}
	return passed
}

// As is like Of for objects of one type. ok is false for an object of another type.
func As[T any](passed any) (object T, ok bool) {
	object, ok = Of(passed).(T)
	return object, ok
}
