package nodeapi

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
)

// TestAwaitABinding: a request waits for a binding of its own node and revision. The controller's
// own write ends the wait, before the watch delivers it. No wait is left behind.
func TestAwaitABinding(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		instances := index.NewInstances()
		b := newBindings(instances)
		instances.Subscribe(b.observe)
		var looks atomic.Int64
		await := func(ctx context.Context, node, namespace, revision string) <-chan bool {
			out := make(chan bool, 1)
			go func() {
				out <- b.await(ctx, node, namespace, func(revisions map[string]struct{}) bool {
					looks.Add(1)
					_, ok := revisions[revision]
					return ok
				})
			}()
			synctest.Wait()
			return out
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		first, second := await(ctx, "node-1", "shop", "web-1"), await(ctx, "node-1", "shop", "web-2")
		elsewhere := await(ctx, "node-1", "other", "web-1")
		before := looks.Load()
		instances.Observe(bound("1", "node-2", "web-1"))
		pending := bound("2", "", "web-1")
		pending.ResourceVersion = "1"
		instances.Observe(pending)
		synctest.Wait()
		if looks.Load() != before || len(first) > 0 {
			t.Fatalf("%d looks after changes that are not of the node", looks.Load()-before)
		}
		now := bound("2", "node-1", "web-1")
		now.ResourceVersion = "2"
		instances.Put(now)
		synctest.Wait()
		if len(first) != 1 || !<-first || len(second) > 0 || len(elsewhere) > 0 {
			t.Error("the controller's own write did not end the wait for it, and only that")
		}
		if !b.owns("node-1", "2") || !b.owns("node-2", "1") || b.owns("node-2", "2") || b.owns("node-1", "1") || b.owns("", "3") || b.namespace("2") != "shop" || b.namespace("3") != "" {
			t.Error("owners or namespaces are wrong")
		}
		if <-second || <-elsewhere {
			t.Error("a wait ended without its binding")
		}
		instances.Remove(now)
		if b.owns("node-1", "2") || len(b.revisions("node-1", "shop")) > 0 || len(b.waiting) > 0 {
			t.Errorf("after the end: %v, %v", b.revisions("node-1", "shop"), b.waiting)
		}
	})
}

// TestBindingsOfTheWatch: a server whose controller is not active has bindings from the watch.
func TestBindingsOfTheWatch(t *testing.T) {
	t.Parallel()
	instances := index.NewInstances()
	b := newBindings(instances)
	instances.Subscribe(b.observe)
	instances.Replace([]*rikv1alpha1.Instance{bound("1", "node-1", "web-1"), bound("2", "node-1", "web-1")}, 5)
	instances.Replace([]*rikv1alpha1.Instance{bound("2", "node-1", "web-1")}, 7)
	if _, ok := b.revisions("node-1", "shop")["web-1"]; !ok || b.owns("node-1", "1") || !b.owns("node-1", "2") {
		t.Errorf("the node has %v, want the second instance", b.revisions("node-1", "shop"))
	}
}
