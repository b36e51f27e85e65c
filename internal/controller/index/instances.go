// Package index holds the active controller's view of the cluster's instances. It combines the
// objects from the watch with the responses to the controller's own writes. No decision is
// therefore based on a state that the controller itself has already changed.
//
// All objects in it are shared and must not be changed: copy them before writing.
package index

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Key returns the namespaced name of an instance.
func Key(in *rikv1alpha1.Instance) types.NamespacedName {
	return types.NamespacedName{Namespace: in.Namespace, Name: in.Name}
}

// WorkloadKey returns the namespaced name of an instance's workload.
func WorkloadKey(in *rikv1alpha1.Instance) types.NamespacedName {
	return types.NamespacedName{Namespace: in.Namespace, Name: in.Spec.Workload}
}

type set = map[types.UID]*rikv1alpha1.Instance

// Listener is called for every change. before is nil for a new instance, and after is nil for a
// deleted one. It is called without a lock and must not block.
type Listener func(before, after *rikv1alpha1.Instance)

// Instances indexes instances by name, UID, workload and node. It keeps the newest resource
// version of an object, whether that came from the watch or from a write.
type Instances struct {
	listeners []Listener

	mu sync.RWMutex
	// mu guards the maps below and seen.
	byKey      map[types.NamespacedName]*rikv1alpha1.Instance
	byUID      set
	byWorkload map[types.NamespacedName]set
	byNode     map[string]set
	// seen is the highest resource version from the watch. An object that has a lower version and
	// is not in the maps was deleted: it is not new.
	seen uint64
}

// NewInstances creates an empty view.
func NewInstances(listeners ...Listener) *Instances {
	return &Instances{
		listeners:  listeners,
		byKey:      map[types.NamespacedName]*rikv1alpha1.Instance{},
		byUID:      set{},
		byWorkload: map[types.NamespacedName]set{},
		byNode:     map[string]set{},
	}
}

// Subscribe adds a listener. Call it before the first change.
func (v *Instances) Subscribe(l Listener) { v.listeners = append(v.listeners, l) }

// Observe applies an object from the watch.
func (v *Instances) Observe(in *rikv1alpha1.Instance) { v.take(in, true) }

// Put applies the response to a write.
func (v *Instances) Put(in *rikv1alpha1.Instance) { v.take(in, false) }

func (v *Instances) take(in *rikv1alpha1.Instance, watched bool) {
	version := versionOf(in)
	v.mu.Lock()
	present := v.byKey[Key(in)]
	if watched {
		v.seen = max(v.seen, version)
	}
	stale := present != nil && versionOf(present) >= version ||
		present == nil && !watched && version <= v.seen
	if stale {
		v.mu.Unlock()
		return
	}
	var gone *rikv1alpha1.Instance
	if present != nil {
		v.removeLocked(present)
		if present.UID != in.UID {
			gone, present = present, nil
		}
	}
	v.addLocked(in)
	v.mu.Unlock()
	if gone != nil {
		v.notify(gone, nil)
	}
	v.notify(present, in)
}

// Remove applies a deletion from the watch.
func (v *Instances) Remove(in *rikv1alpha1.Instance) {
	v.mu.Lock()
	v.seen = max(v.seen, versionOf(in))
	present := v.byUID[in.UID]
	if present != nil {
		v.removeLocked(present)
	}
	v.mu.Unlock()
	if present != nil {
		v.notify(present, nil)
	}
}

func (v *Instances) notify(before, after *rikv1alpha1.Instance) {
	for _, l := range v.listeners {
		l(before, after)
	}
}

func (v *Instances) addLocked(in *rikv1alpha1.Instance) {
	v.byKey[Key(in)] = in
	v.byUID[in.UID] = in
	put(v.byWorkload, WorkloadKey(in), in)
	if in.Spec.NodeName != "" {
		put(v.byNode, in.Spec.NodeName, in)
	}
}

func (v *Instances) removeLocked(in *rikv1alpha1.Instance) {
	if at := v.byKey[Key(in)]; at == in {
		delete(v.byKey, Key(in))
	}
	delete(v.byUID, in.UID)
	drop(v.byWorkload, WorkloadKey(in), in.UID)
	drop(v.byNode, in.Spec.NodeName, in.UID)
}

func put[K comparable](index map[K]set, key K, in *rikv1alpha1.Instance) {
	if index[key] == nil {
		index[key] = set{}
	}
	index[key][in.UID] = in
}

func drop[K comparable](index map[K]set, key K, uid types.UID) {
	delete(index[key], uid)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}

// Get returns the instance with a name, or nil.
func (v *Instances) Get(key types.NamespacedName) *rikv1alpha1.Instance {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.byKey[key]
}

// ByUID returns the instance with a UID, or nil.
func (v *Instances) ByUID(uid types.UID) *rikv1alpha1.Instance {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.byUID[uid]
}

// OfWorkload returns a workload's instances in no order.
func (v *Instances) OfWorkload(key types.NamespacedName) []*rikv1alpha1.Instance {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return values(v.byWorkload[key])
}

// CountOfWorkload returns the number of a workload's instances.
func (v *Instances) CountOfWorkload(key types.NamespacedName) int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.byWorkload[key])
}

// OnNode returns the instances that are bound to a node in no order.
func (v *Instances) OnNode(name string) []*rikv1alpha1.Instance {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return values(v.byNode[name])
}

// All returns every instance in no order.
func (v *Instances) All() []*rikv1alpha1.Instance {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return values(v.byUID)
}

// Workloads returns the workloads that have instances.
func (v *Instances) Workloads() []types.NamespacedName {
	v.mu.RLock()
	defer v.mu.RUnlock()
	out := make([]types.NamespacedName, 0, len(v.byWorkload))
	for k := range v.byWorkload {
		out = append(out, k)
	}
	return out
}

// CountIn returns the number of instances in a namespace.
func (v *Instances) CountIn(namespace string) int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	n := 0
	for k, s := range v.byWorkload {
		if k.Namespace == namespace {
			n += len(s)
		}
	}
	return n
}

func values(s set) []*rikv1alpha1.Instance {
	out := make([]*rikv1alpha1.Instance, 0, len(s))
	for _, in := range s {
		out = append(out, in)
	}
	return out
}

func versionOf(in *rikv1alpha1.Instance) uint64 { return numberOf(in.ResourceVersion) }
