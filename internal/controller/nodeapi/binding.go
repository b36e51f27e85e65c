package nodeapi

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
)

// bindings answers which revisions the instances of a node have. It reads the index of
// instances. In the server of the active controller the index has a binding as soon as it is
// durable. In another server it may be slightly behind the datastore.
type bindings struct {
	instances *index.Instances

	mu sync.Mutex
	// waiting is guarded by mu. It has the nodes for which requests wait.
	waiting map[string]*waiters
}

// waiters are the requests that wait for bindings of one node.
type waiters struct {
	count   int
	changed chan struct{} // closed and replaced when an instance is bound to the node
}

func newBindings(instances *index.Instances) *bindings {
	return &bindings{instances: instances, waiting: map[string]*waiters{}}
}

// observe wakes the requests that wait for a new binding. An instance never moves.
func (b *bindings) observe(before, after *rikv1alpha1.Instance) {
	if after == nil || after.Spec.NodeName == "" || before != nil && before.Spec.NodeName != "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if w := b.waiting[after.Spec.NodeName]; w != nil {
		close(w.changed)
		w.changed = make(chan struct{})
	}
}

// enter adds a request that waits for bindings of a node. leave ends the wait.
func (b *bindings) enter(node string) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.waiting[node]
	if w == nil {
		w = &waiters{changed: make(chan struct{})}
		b.waiting[node] = w
	}
	w.count++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if w.count--; w.count == 0 {
			delete(b.waiting, node)
		}
	}
}

// changed returns a channel that is closed at the next binding of a node that is waited for.
func (b *bindings) changed(node string) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting[node].changed
}

// owns reports whether an instance exists and is bound to the node.
func (b *bindings) owns(node string, uid types.UID) bool {
	in := b.instances.ByUID(uid)
	return in != nil && node != "" && in.Spec.NodeName == node
}

// namespace returns the namespace of an instance. It is empty for an unknown one.
func (b *bindings) namespace(uid types.UID) string {
	if in := b.instances.ByUID(uid); in != nil {
		return in.Namespace
	}
	return ""
}

// revisions returns the names of the revisions whose instances the node has in a namespace.
func (b *bindings) revisions(node, namespace string) map[string]struct{} {
	names := map[string]struct{}{}
	for _, in := range b.instances.OnNode(node) {
		if in.Namespace == namespace {
			names[in.Spec.Revision] = struct{}{}
		}
	}
	return names
}

// await calls fits with the node's revisions in the namespace, and again after each binding of
// the node. It returns true when fits does, and false when ctx ends.
func (b *bindings) await(ctx context.Context, node, namespace string, fits func(revisions map[string]struct{}) bool) bool {
	if fits(b.revisions(node, namespace)) {
		return true
	}
	defer b.enter(node)()
	for {
		changed := b.changed(node)
		if fits(b.revisions(node, namespace)) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}
