package nodeapi

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// revisionKey identifies a WorkloadRevision.
type revisionKey struct{ namespace, name string }

// bindings records the revisions whose instances each node has. It follows the watch, which may
// be slightly behind the datastore.
type bindings struct {
	mu      sync.Mutex
	node    map[types.UID]string                          // of each bound instance
	rev     map[types.UID]revisionKey                     // of each bound instance
	uses    map[string]map[revisionKey]map[types.UID]bool // by node
	changed chan struct{}                                 // closed and replaced at every change
}

func newBindings() *bindings {
	return &bindings{
		node:    map[types.UID]string{},
		rev:     map[types.UID]revisionKey{},
		uses:    map[string]map[revisionKey]map[types.UID]bool{},
		changed: make(chan struct{}),
	}
}

// set records an instance.
func (b *bindings) set(in *rikv1alpha1.Instance) {
	if in.Spec.NodeName == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.node[in.UID]; known {
		return // node and revision never change
	}
	key := revisionKey{in.Namespace, in.Spec.Revision}
	b.node[in.UID], b.rev[in.UID] = in.Spec.NodeName, key
	byRevision := b.uses[in.Spec.NodeName]
	if byRevision == nil {
		byRevision = map[revisionKey]map[types.UID]bool{}
		b.uses[in.Spec.NodeName] = byRevision
	}
	if byRevision[key] == nil {
		byRevision[key] = map[types.UID]bool{}
	}
	byRevision[key][in.UID] = true
	close(b.changed)
	b.changed = make(chan struct{})
}

// remove removes an instance.
func (b *bindings) remove(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	node, ok := b.node[uid]
	if !ok {
		return
	}
	key := b.rev[uid]
	delete(b.node, uid)
	delete(b.rev, uid)
	delete(b.uses[node][key], uid)
	if len(b.uses[node][key]) == 0 {
		delete(b.uses[node], key)
	}
	if len(b.uses[node]) == 0 {
		delete(b.uses, node)
	}
}

// owns reports whether an instance exists and is bound to the node.
func (b *bindings) owns(node string, uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	bound, ok := b.node[uid]
	return ok && bound == node
}

// namespace returns the namespace of a bound instance. It is empty for an unknown one.
func (b *bindings) namespace(uid types.UID) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rev[uid].namespace
}

// revisions returns the revisions whose instances the node has in a namespace, and a channel
// that is closed at the next change.
func (b *bindings) revisions(node, namespace string) ([]revisionKey, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var keys []revisionKey
	for key := range b.uses[node] {
		if key.namespace == namespace {
			keys = append(keys, key)
		}
	}
	return keys, b.changed
}

// await calls fits with the node's revisions in the namespace, and again after each change. It
// returns true when fits does, and false when ctx ends.
func (b *bindings) await(ctx context.Context, node, namespace string, fits func([]revisionKey) bool) bool {
	for {
		keys, changed := b.revisions(node, namespace)
		if fits(keys) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}
