package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// answerers is the number of parallel status updates for a cluster.
const answerers = 16

// numbers watches the Deployments of a server. It records when it last saw the replicas of each
// ready, and how many.
type numbers struct {
	mu   sync.Mutex
	seen map[string]readyAt
	// changed is closed and replaced when a Deployment with the name was seen.
	changed map[string]chan struct{}
}

type readyAt struct {
	replicas int64
	at       time.Time
}

// watchNumbers watches Deployments. It also passes each one to also, if that is set.
func watchNumbers(b *testing.B, config *rest.Config, also func(context.Context, *unstructured.Unstructured) error) *numbers {
	b.Helper()
	n := &numbers{seen: map[string]readyAt{}, changed: map[string]chan struct{}{}}
	ctx, cancel := context.WithCancel(b.Context())
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(answerers)
	informer := dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(config), 0).ForResource(deploymentType).Informer()
	handle := func(seen any) {
		o, ok := seen.(*unstructured.Unstructured)
		if !ok {
			return
		}
		n.note(o, time.Now())
		if also != nil {
			group.Go(func() error { return also(ctx, o) })
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(_, seen any) { handle(seen) }}); err != nil {
		b.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	b.Cleanup(func() {
		cancel()
		running.Wait()
		if err := group.Wait(); err != nil {
			b.Errorf("answering for a cluster: %v", err)
		}
	})
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		b.Fatal("no Deployments can be watched")
	}
	return n
}

func (n *numbers) note(o *unstructured.Unstructured, now time.Time) {
	wanted, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
	for _, field := range []string{"replicas", "readyReplicas", "availableReplicas"} {
		if got, _, _ := unstructured.NestedInt64(o.Object, "status", field); got != wanted {
			return
		}
	}
	if got, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); got != o.GetGeneration() {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen[o.GetName()].replicas == wanted {
		return
	}
	n.seen[o.GetName()] = readyAt{wanted, now}
	if c := n.changed[o.GetName()]; c != nil {
		close(c)
		delete(n.changed, o.GetName())
	}
}

// await waits until that many replicas of a Deployment are ready, and returns when they were
// first seen to be.
func (n *numbers) await(ctx context.Context, name string, replicas int64) (time.Time, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		n.mu.Lock()
		last := n.seen[name]
		if n.changed[name] == nil {
			n.changed[name] = make(chan struct{})
		}
		changed := n.changed[name]
		n.mu.Unlock()
		if last.replicas == replicas {
			return last.at, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case <-timer.C:
			return time.Time{}, fmt.Errorf("%s has %d replicas ready, want %d", name, last.replicas, replicas)
		}
	}
}

// answer returns a function that sets the status of a Deployment: all replicas are ready.
func answer(client dynamic.Interface) func(context.Context, *unstructured.Unstructured) error {
	return func(ctx context.Context, o *unstructured.Unstructured) error {
		if seen, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); seen == o.GetGeneration() || o.GetDeletionTimestamp() != nil {
			return nil
		}
		wanted, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
		now := time.Now().UTC().Format(time.RFC3339)
		reported := o.DeepCopy()
		reported.Object["status"] = map[string]any{
			"observedGeneration": o.GetGeneration(), "replicas": wanted, "updatedReplicas": wanted, "readyReplicas": wanted, "availableReplicas": wanted,
			"conditions": []any{map[string]any{"type": "Available", "status": "True", "reason": "Answered", "message": "", "lastUpdateTime": now, "lastTransitionTime": now}},
		}
		_, err := client.Resource(deploymentType).Namespace(o.GetNamespace()).UpdateStatus(ctx, reported, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || ctx.Err() != nil {
			return nil //nolint:nilerr // what it is now comes as well
		}
		return err
	}
}

// scaledDeployment returns a Deployment to scale.
func scaledDeployment(namespace, name string, replicas int64) *unstructured.Unstructured {
	o := object(deploymentType, "Deployment", namespace, name)
	spec := deploymentSpec()
	spec["replicas"] = replicas
	o.Object["spec"] = spec
	return o
}
