// Package index holds the controller's view of the cluster's objects. It combines the objects
// from the watch with the responses to the controller's own writes. No decision is therefore
// based on a state that the controller itself has already changed.
//
// A process has one index of instances. Follow keeps it up to date, whether the controller is
// active or not. It holds each instance once.
//
// All objects in it are shared and must not be changed: copy what you change before writing.
package index

import (
	"slices"
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
// version of an object, whether that came from the watch or from a write. Its listeners belong
// to one scope. All scopes of an index have the same content.
type Instances struct {
	*content
	listeners []Listener
}

// content is what all scopes of an index share.
type content struct {
	synced     chan struct{}
	syncedOnce sync.Once

	mu sync.RWMutex
	// mu guards the fields below. The slice of scopes is replaced and never changed.
	byKey      map[types.NamespacedName]*rikv1alpha1.Instance
	byUID      set
	byWorkload map[types.NamespacedName]set
	byNode     map[string]set
	scopes     []*Instances
	// seen is the highest resource version from the watch. An object that has a lower version and
	// is not in the maps was deleted: it is not new.
	seen uint64
}

// NewInstances creates an empty index with its first scope, which has begun.
func NewInstances() *Instances {
	v := &Instances{content: &content{
		synced:     make(chan struct{}),
		byKey:      map[types.NamespacedName]*rikv1alpha1.Instance{},
		byUID:      set{},
		byWorkload: map[types.NamespacedName]set{},
		byNode:     map[string]set{},
	}}
	v.scopes = []*Instances{v}
	return v
}

// Scope returns the same index without listeners. The caller adds them, and calls Begin and End.
func (v *Instances) Scope() *Instances { return &Instances{content: v.content} }

// Begin passes all instances to the scope's listeners as new, and then every change.
func (v *Instances) Begin() {
	v.mu.Lock()
	v.scopes = append(slices.Clone(v.scopes), v)
	all := values(v.byUID)
	v.mu.Unlock()
	for _, in := range all {
		v.call(nil, in)
	}
}

// End stops calling the scope's listeners. A call that has started may still be running.
func (v *Instances) End() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.scopes = slices.DeleteFunc(slices.Clone(v.scopes), func(o *Instances) bool { return o == v })
}

// Subscribe adds a listener. Call it before the scope begins, and in the first scope before the
// first change.
func (v *Instances) Subscribe(l Listener) { v.listeners = append(v.listeners, l) }

// Synced is closed once the index has had all instances of the API server.
func (v *Instances) Synced() <-chan struct{} { return v.synced }

// Observe applies an object from the watch.
func (v *Instances) Observe(in *rikv1alpha1.Instance) { v.take(in, true) }

// Put applies the response to a write. The index keeps the object.
func (v *Instances) Put(in *rikv1alpha1.Instance) { v.take(in, false) }

// change is one call of the listeners.
type change struct{ before, after *rikv1alpha1.Instance }

func (v *Instances) take(in *rikv1alpha1.Instance, watched bool) {
	in.ManagedFields = nil // nobody reads them
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
	changes := v.setLocked(nil, in)
	scopes := v.scopes
	v.mu.Unlock()
	notify(scopes, changes)
}

// Remove applies a deletion from the watch.
func (v *Instances) Remove(in *rikv1alpha1.Instance) {
	v.mu.Lock()
	v.seen = max(v.seen, versionOf(in))
	present := v.byUID[in.UID]
	if present != nil {
		v.removeLocked(present)
	}
	scopes := v.scopes
	v.mu.Unlock()
	if present != nil {
		notify(scopes, []change{{present, nil}})
	}
}

// Replace applies a list of all instances, and the resource version of the list. It drops the
// instances that the list does not have, except for later writes.
//
// A version below one that the watch has delivered means that the datastore was restored from a
// backup. The versions of the objects then say nothing, and the list replaces everything.
func (v *Instances) Replace(list []*rikv1alpha1.Instance, version uint64) {
	listed := make(map[types.UID]struct{}, len(list))
	for _, in := range list {
		in.ManagedFields = nil
		listed[in.UID] = struct{}{}
	}
	var changes []change
	v.mu.Lock()
	restored := version < v.seen
	for uid, present := range v.byUID {
		if _, ok := listed[uid]; !ok && (restored || versionOf(present) <= version) {
			v.removeLocked(present)
			changes = append(changes, change{present, nil})
		}
	}
	for _, in := range list {
		present := v.byKey[Key(in)]
		if present == nil || versionOf(present) < versionOf(in) || restored && present.ResourceVersion != in.ResourceVersion {
			changes = v.setLocked(changes, in)
		}
	}
	v.seen = version
	scopes := v.scopes
	v.mu.Unlock()
	notify(scopes, changes)
	v.syncedOnce.Do(func() { close(v.synced) })
}

func notify(scopes []*Instances, changes []change) {
	for _, c := range changes {
		for _, s := range scopes {
			s.call(c.before, c.after)
		}
	}
}

func (v *Instances) call(before, after *rikv1alpha1.Instance) {
	for _, l := range v.listeners {
		l(before, after)
	}
}

// setLocked stores an instance under its name, and appends the changes that this makes.
func (v *Instances) setLocked(changes []change, in *rikv1alpha1.Instance) []change {
	present := v.byKey[Key(in)]
	if present != nil {
		v.removeLocked(present)
		if present.UID != in.UID {
			changes, present = append(changes, change{present, nil}), nil
		}
	}
	v.addLocked(in)
	return append(changes, change{present, in})
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
