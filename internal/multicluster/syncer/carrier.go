package syncer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/finalstate"
	"rik.dev/rik/internal/multicluster/typehealth"
)

// carrier watches the objects of one type on both sides.
type carrier struct {
	Type
	// upstream has two informers for one type: objects with one target and objects with several.
	// A label selector has no "or", and the kcp does not allow a list without a selector.
	upstream   [2]cache.SharedIndexInformer
	downstream cache.SharedIndexInformer
	// readers belong to the two upstream informers and the downstream informer.
	readers [3]reader
	// recentUp and recentDown are writes of this syncer that the informers have not delivered
	// yet.
	recentUp, recentDown recent

	stop    context.CancelFunc
	running sync.WaitGroup
	synced  chan struct{} // closed when the caches are filled
	// enqueued is true after all objects in the caches were added to the queue of the engine.
	enqueued atomic.Bool
}

func newCarrier(t Type, e *engine) (*carrier, error) {
	c := &carrier{Type: t, stop: func() {}, synced: make(chan struct{})}
	selectors := selectors(e.config.Cluster)
	for i, selector := range selectors {
		c.upstream[i], c.readers[i] = newInformer(e.upstream, t, selector, upstreamIndexers(), e.readingChanged)
		if err := c.upstream[i].SetTransform(withoutManagedFields); err != nil {
			return nil, err
		}
		if err := watch(c.upstream[i], e.log, func(o *unstructured.Unstructured) { e.upstreamChanged(c, o) }); err != nil {
			return nil, err
		}
	}
	c.downstream, c.readers[2] = newInformer(e.downstream, t, selectors[0], downstreamIndexers(), e.readingChanged)
	return c, watch(c.downstream, e.log, func(o *unstructured.Unstructured) { e.downstreamChanged(c, o) })
}

// selectors returns the selectors for objects that are sent to a cluster: with one target, and
// with several.
func selectors(cluster string) [2]string {
	return [2]string{
		workloadv1alpha1.ClusterLabel + "=" + cluster,
		workloadv1alpha1.TargetLabelPrefix + cluster + "=true",
	}
}

// start watches until ctx or end ends it. When every cache is filled, it passes all objects in
// the caches to the engine, and after that every change.
func (c *carrier) start(ctx context.Context, e *engine) {
	ctx, c.stop = context.WithCancel(ctx)
	for _, informer := range c.informers() {
		c.running.Go(func() { informer.RunWithContext(ctx) })
	}
	c.running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), c.upstream[0].HasSynced, c.upstream[1].HasSynced, c.downstream.HasSynced) {
			close(c.synced)
			e.lookAtAll(c)
		}
	})
}

func (c *carrier) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{c.upstream[0], c.upstream[1], c.downstream}
}

// end stops watching, and returns after all goroutines have ended.
func (c *carrier) end() {
	c.stop()
	c.running.Wait()
}

func (c *carrier) isSynced() bool {
	select {
	case <-c.synced:
		return true
	default:
		return false
	}
}

// reader reads objects on one side.
type reader struct {
	*typehealth.Reader
	side *side
}

func newInformer(s *side, t Type, selector string, indexers cache.Indexers, changed func()) (cache.SharedIndexInformer, reader) {
	objects := s.objects.Resource(t.Resource)
	with := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector = selector
		return o
	}
	r := typehealth.New(typehealth.Options{
		Client: s.objects, Unreachable: isLost, Reachable: s.reachable, Show: s.redact, Changed: changed,
		Source: typehealth.Source{
			List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := objects.List(ctx, with(o))
				s.note(err)
				return list, err
			},
			Watch: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
				w, err := objects.Watch(ctx, with(o))
				s.note(err)
				return w, err
			},
		},
	})
	options := cache.SharedIndexInformerOptions{ObjectDescription: t.Resource.String(), Indexers: indexers}
	return cache.NewSharedIndexInformerWithOptions(r.ListerWatcher(), &unstructured.Unstructured{}, options), reader{r, s}
}

// trouble returns why objects of the type cannot be read on one side, or nil if they can.
func (c *carrier) trouble(now time.Time) *typehealth.Trouble {
	for _, r := range c.readers {
		if t := r.Trouble(now); t != nil {
			t.Message = fmt.Sprintf("%s does not allow listing and watching objects of this type: %s", r.side.name, t.Message)
			return t
		}
	}
	return nil
}

// watch registers a handler for changes. It logs lost watches at debug level: the informer
// restarts them, and the conditions of the Cluster report what is unreachable.
func watch(informer cache.SharedIndexInformer, log *slog.Logger, changed func(*unstructured.Unstructured)) error {
	object := func(o any) {
		if u, ok := finalstate.As[*unstructured.Unstructured](o); ok {
			changed(u)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    object,
		UpdateFunc: func(_, o any) { object(o) },
		DeleteFunc: object,
	})
	if err != nil {
		return fmt.Errorf("watching: %w", err)
	}
	return informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		log.Debug("a watch was lost", "err", err)
	})
}

// upstreamObject returns an object from the caches, first from the cache of single targets. If
// this syncer wrote a newer version, it returns that one.
func (c *carrier) upstreamObject(key Key) *unstructured.Unstructured {
	name := cache.NewObjectName(key.Namespace, key.Name)
	return c.recentUp.over(c.cachedUpstream(name), name, time.Now())
}

// wroteUpstream records the response to a write.
func (c *carrier) wroteUpstream(o *unstructured.Unstructured) {
	o.SetManagedFields(nil)
	c.recentUp.note(c.cachedUpstream(cache.MetaObjectToName(o)), o, time.Now())
}

func (c *carrier) cachedUpstream(name cache.ObjectName) *unstructured.Unstructured {
	for _, informer := range c.upstream {
		if o := lookUp(informer, name.Namespace, name.Name); o != nil {
			return o
		}
	}
	return nil
}

func (c *carrier) downstreamObject(namespace, name string) *unstructured.Unstructured {
	return c.recentDown.over(lookUp(c.downstream, namespace, name), cache.NewObjectName(namespace, name), time.Now())
}

// wroteDownstream records the response to a write.
func (c *carrier) wroteDownstream(o *unstructured.Unstructured) {
	c.recentDown.note(lookUp(c.downstream, o.GetNamespace(), o.GetName()), o, time.Now())
}

func lookUp(informer cache.SharedIndexInformer, namespace, name string) *unstructured.Unstructured {
	o, found, err := informer.GetStore().GetByKey(cache.NewObjectName(namespace, name).String())
	if err != nil || !found {
		return nil
	}
	return o.(*unstructured.Unstructured)
}
