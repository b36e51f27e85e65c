package controller

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter/cache"
	"rik.dev/rik/internal/multicluster/splitter/follower"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/reconcile"
	"rik.dev/rik/internal/reconcile/runtimelog"
)

// fieldManager is the field manager of everything that the controller writes.
const fieldManager = "rik-splitter"

// Controller divides roots until its context ends. New creates it. Run may be called once.
type Controller struct {
	config       Config
	dynamic      dynamic.Interface
	metadata     metadata.Interface
	eventsClient typedcorev1.EventInterface
	// recorder is set while Run runs.
	recorder record.EventRecorder
	metrics  *metrics
	now      func() time.Time

	clusters, placements, crds, negotiated toolscache.SharedIndexInformer

	types    *reconcile.Queue[struct{}]
	roots    *reconcile.Queue[rootKey]
	removals *reconcile.Queue[string]

	mu sync.RWMutex
	// mu guards kinds and typesKnown. typesKnown is true after the types were read once.
	kinds      map[schema.GroupResource]*kind
	typesKnown bool

	followers *follower.Followers
	memory    *memory
}

// rootKey identifies a root.
type rootKey = key.Root

// New creates a controller. It does not connect to the kcp yet.
func New(config Config) (*Controller, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the splitter: %w", err)
	}
	config = config.withDefaults()
	runtimelog.Set(config.Logger)
	c := &Controller{
		config: config, now: time.Now, kinds: map[schema.GroupResource]*kind{}, memory: newMemory(),
	}
	if err := c.connect(); err != nil {
		return nil, fmt.Errorf("preparing the splitter's connection to the kcp: %w", err)
	}
	queue := func(name string, workers int) reconcile.Options {
		return reconcile.Options{Name: name, Workers: workers, Logger: config.Logger}
	}
	c.types = reconcile.New(queue("split-types", 1), c.keepTypes)
	c.roots = reconcile.New(queue("split-roots", config.Workers), c.reconcile)
	c.removals = reconcile.New(queue("split-removals", 1), c.keepRemoval)
	c.metrics = newMetrics(c.roots.Len)
	if config.Metrics != nil {
		if err := c.metrics.register(config.Metrics); err != nil {
			return nil, fmt.Errorf("registering the splitter's metrics: %w", err)
		}
	}
	return c, nil
}

func (c *Controller) connect() error {
	upstream := rest.CopyConfig(c.config.Rest)
	// Types that a CRD serves support only JSON. The number of workers limits the requests.
	upstream.ContentType, upstream.AcceptContentTypes = "application/json", "application/json"
	upstream.QPS, upstream.Burst = -1, -1
	upstream.UserAgent = cmp.Or(upstream.UserAgent, fieldManager)
	http, err := rest.HTTPClientFor(upstream)
	if err != nil {
		return err
	}
	if c.dynamic, err = dynamic.NewForConfigAndClient(upstream, http); err != nil {
		return err
	}
	if c.metadata, err = metadata.NewForConfigAndClient(metadata.ConfigFor(upstream), http); err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfigAndClient(upstream, http)
	if err != nil {
		return err
	}
	c.eventsClient = kube.CoreV1().Events(metav1.NamespaceAll)
	if c.followers, err = c.newFollowers(); err != nil {
		return err
	}
	return c.cacheUpstream()
}

// Run divides roots until ctx ends. It returns after all its goroutines have ended. If the kcp
// does not answer yet, Run waits for it.
func (c *Controller) Run(ctx context.Context) error {
	defer c.record(ctx)()
	group, ctx := errgroup.WithContext(ctx)
	caches := []toolscache.SharedIndexInformer{c.clusters, c.placements, c.crds, c.negotiated}
	synced := []toolscache.InformerSynced{c.followers.HasSynced}
	group.Go(func() error { return c.followers.Fill(ctx) })
	for _, informer := range caches {
		synced = append(synced, informer.HasSynced)
		group.Go(func() error {
			informer.RunWithContext(ctx)
			return nil
		})
	}
	group.Go(func() error {
		defer c.stopTypes()
		if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
			return nil
		}
		c.config.Logger.Info("the splitter runs", "types", c.config.Types)
		c.types.Add(struct{}{})
		queues, ctx := errgroup.WithContext(ctx)
		for _, run := range []func(context.Context) error{c.types.Run, c.roots.Run, c.followers.Run, c.removals.Run} {
			queues.Go(func() error { return run(ctx) })
		}
		return queues.Wait()
	})
	return group.Wait()
}

// everyRoot queues a pass for every root in a namespace. If namespace is empty, it queues all
// roots.
func (c *Controller) everyRoot(namespace string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, k := range c.kinds {
		namespaces := []string{namespace}
		if namespace == "" {
			namespaces = k.GetIndexer().ListIndexFuncValues(rootIndex)
		}
		for _, n := range namespaces {
			c.addRoots(k, k.find(rootIndex, n)...)
		}
	}
}

// clusterNamed returns a Cluster, or nil if it does not exist.
func (c *Controller) clusterNamed(name string) *workloadv1alpha1.Cluster {
	return cache.Get[workloadv1alpha1.Cluster](c.clusters, name)
}
