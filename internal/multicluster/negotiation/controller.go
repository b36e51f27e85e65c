package negotiation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/finalstate"
	"rik.dev/rik/internal/multicluster/crdpuller"
	"rik.dev/rik/internal/reconcile"
	"rik.dev/rik/internal/reconcile/runtimelog"
)

const (
	// DefaultRecheck is the interval at which the controller checks whether the objects that keep
	// a type are gone. There is no event for that.
	DefaultRecheck = 10 * time.Second
	// DefaultWorkers is the number of concurrent passes. A pass over a large type takes some tens
	// of milliseconds of one core.
	DefaultWorkers = 2
	// DefaultRefresh is the interval at which the types that the kcp itself serves are read
	// again. They change when a kcp of another version takes over. A controller in another
	// process gets no event for that. A refresh without changes costs about twenty requests.
	DefaultRefresh = 5 * time.Minute
	// startPause is the time between two attempts to find the types of negotiation served.
	startPause = time.Second
)

// Config is the configuration of a [Controller].
type Config struct {
	// Rest connects to the kcp as a user who may do everything with the negotiated types. It is
	// required. New does not change it.
	Rest *rest.Config
	// AutoPublish publishes every type when it is negotiated for the first time.
	AutoPublish bool
	// Workers is how many types are processed at once. 0 means DefaultWorkers.
	Workers int
	// Recheck is the interval of checks for stored objects. 0 means DefaultRecheck.
	Recheck time.Duration
	// Refresh is the interval of reading the kcp's own types. 0 means DefaultRefresh.
	Refresh time.Duration
	// Logger receives the logs. nil means slog.Default.
	Logger *slog.Logger
	// Metrics registers the metrics of the controller. nil means no metrics.
	Metrics prometheus.Registerer
}

// Validate reports every problem.
func (c *Config) Validate() error {
	var problems []error
	if c.Rest == nil {
		problems = append(problems, errors.New("the configuration of a client, Rest, is required"))
	}
	if c.Workers < 0 {
		problems = append(problems, fmt.Errorf("the number of workers is negative: %d", c.Workers))
	}
	if c.Recheck < 0 {
		problems = append(problems, fmt.Errorf("the interval of the checks of stored objects, Recheck, is negative: %v", c.Recheck))
	}
	if c.Refresh < 0 {
		problems = append(problems, fmt.Errorf("the time between two readings of the kcp's own types, Refresh, is negative: %v", c.Refresh))
	}
	return errors.Join(problems...)
}

// Controller negotiates until its context ends. Run may be called once.
type Controller struct {
	config   Config
	client   client.Client
	dynamic  dynamic.Interface
	cache    cache.Cache
	queue    *reconcile.Queue[schema.GroupResource]
	metrics  *metrics
	own      *crdpuller.Puller
	upstream atomic.Pointer[upstream]
}

// upstream is what a pass must know of the kcp. It is read before the first pass and again at
// intervals. It is replaced as a whole.
type upstream struct {
	// native are the types that the kcp itself serves.
	native map[schema.GroupResource][]apiresourcev1alpha1.CommonAPIResourceSpec
	// anchor is the kcp's kube-system namespace, which is never deleted.
	anchor *metav1.OwnerReference
}

// scheme contains the types that the controller reads and writes.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(apiextensionsv1.AddToScheme(s))
	utilruntime.Must(apiresourcev1alpha1.AddToScheme(s))
	utilruntime.Must(workloadv1alpha1.AddToScheme(s))
	utilruntime.Must(metav1.AddMetaToScheme(s))
	return s
}()

// New creates a controller. It does not connect to the kcp yet.
func New(c Config) (*Controller, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("configuring negotiation: %w", err)
	}
	c.Workers = cmp.Or(c.Workers, DefaultWorkers)
	c.Recheck = cmp.Or(c.Recheck, DefaultRecheck)
	c.Refresh = cmp.Or(c.Refresh, DefaultRefresh)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	runtimelog.Set(c.Logger)
	c.Rest = rest.CopyConfig(c.Rest)
	// Types that CRDs serve do not support protobuf.
	c.Rest.ContentType, c.Rest.AcceptContentTypes = runtime.ContentTypeJSON, ""
	out := &Controller{config: c, metrics: newMetrics()}
	out.queue = reconcile.New(reconcile.Options{Name: "negotiation", Workers: c.Workers, Logger: c.Logger}, out.reconcile)
	var err error
	if out.dynamic, err = dynamic.NewForConfig(c.Rest); err != nil {
		return nil, fmt.Errorf("making a client for negotiation: %w", err)
	}
	if out.own, err = crdpuller.New(crdpuller.Config{Rest: c.Rest, Logger: c.Logger}); err != nil {
		return nil, fmt.Errorf("making a puller of the kcp's own types: %w", err)
	}
	if c.Metrics != nil {
		if err := out.metrics.register(c.Metrics, out.queue.Len); err != nil {
			return nil, fmt.Errorf("registering the metrics of negotiation: %w", err)
		}
	}
	return out, nil
}

// Run negotiates until ctx ends. It returns after all its goroutines have ended. If the kcp does
// not answer yet, Run waits for it.
func (c *Controller) Run(ctx context.Context) error {
	prepared := false
	// The only error is that the context has ended.
	_ = wait.PollUntilContextCancel(ctx, startPause, true, func(ctx context.Context) (bool, error) {
		err := c.prepare(ctx)
		if err != nil && ctx.Err() == nil {
			c.config.Logger.Warn("waiting for the kcp before negotiating", "err", err)
		}
		prepared = err == nil
		return prepared, nil
	})
	if !prepared {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.cache.Start(ctx) })
	group.Go(func() error {
		if !c.cache.WaitForCacheSync(ctx) {
			return nil
		}
		return c.queue.Run(ctx)
	})
	group.Go(func() error {
		c.runRefresh(ctx)
		return nil
	})
	return group.Wait()
}

// prepare creates everything that needs answers of the kcp. It may be called again.
func (c *Controller) prepare(ctx context.Context) error {
	var err error
	if c.client, err = client.New(c.config.Rest, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	found, err := c.look(ctx)
	if err != nil {
		return err
	}
	c.upstream.Store(found)
	c.cache, err = cache.New(c.config.Rest, cache.Options{Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields()})
	if err != nil {
		return fmt.Errorf("making a cache: %w", err)
	}
	return c.watch(ctx)
}

// resourceIndex finds imports and negotiated resources by plural and group.
const resourceIndex = "resource"

func keyStrings(keys func(client.Object) []schema.GroupResource) client.IndexerFunc {
	return func(o client.Object) []string {
		var out []string
		for _, key := range keys(o) {
			out = append(out, key.String())
		}
		return out
	}
}

// watch adds the keys of changed objects to the queue.
func (c *Controller) watch(ctx context.Context) error {
	if err := errors.Join(
		c.cache.IndexField(ctx, &apiresourcev1alpha1.APIResourceImport{}, resourceIndex, keyStrings(importKeys)),
		c.cache.IndexField(ctx, &apiresourcev1alpha1.NegotiatedAPIResource{}, resourceIndex, keyStrings(negotiatedKeys)),
	); err != nil {
		return fmt.Errorf("indexing by resource: %w", err)
	}
	cluster := &metav1.PartialObjectMetadata{}
	cluster.SetGroupVersionKind(workloadv1alpha1.SchemeGroupVersion.WithKind("Cluster"))
	ages := handler(func(o client.Object) []schema.GroupResource { return c.clusterKeys(ctx, o) }, c.queue.Add)
	ages.UpdateFunc = nil // The age of a Cluster does not change, and its heartbeat often does.
	for _, w := range []struct {
		object  client.Object
		handler toolscache.ResourceEventHandler
	}{
		{&apiresourcev1alpha1.APIResourceImport{}, handler(importKeys, c.queue.Add)},
		{&apiresourcev1alpha1.NegotiatedAPIResource{}, handler(negotiatedKeys, c.queue.Add)},
		{&apiextensionsv1.CustomResourceDefinition{}, handler(crdKeys, c.queue.Add)},
		{cluster, ages},
	} {
		informer, err := c.cache.GetInformer(ctx, w.object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T: %w", w.object, err)
		}
		if _, err := informer.AddEventHandler(w.handler); err != nil {
			return fmt.Errorf("watching %T: %w", w.object, err)
		}
	}
	return nil
}

// handler adds the keys of an object before and after a change.
func handler(keys func(client.Object) []schema.GroupResource, add func(schema.GroupResource)) toolscache.ResourceEventHandlerFuncs {
	changed := func(o any) {
		if object, ok := finalstate.As[client.Object](o); ok {
			for _, key := range keys(object) {
				add(key)
			}
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(before, after any) { changed(before); changed(after) },
		DeleteFunc: changed,
	}
}

func importKeys(o client.Object) []schema.GroupResource {
	if i, ok := o.(*apiresourcev1alpha1.APIResourceImport); ok {
		return []schema.GroupResource{i.Spec.GVR().GroupResource()}
	}
	return nil
}

func negotiatedKeys(o client.Object) []schema.GroupResource {
	if n, ok := o.(*apiresourcev1alpha1.NegotiatedAPIResource); ok {
		return []schema.GroupResource{n.Spec.GVR().GroupResource()}
	}
	return nil
}

func crdKeys(o client.Object) []schema.GroupResource {
	if crd, ok := o.(*apiextensionsv1.CustomResourceDefinition); ok {
		return []schema.GroupResource{{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}}
	}
	return nil
}

// clusterKeys returns the types that a cluster offers, because its age may affect them.
func (c *Controller) clusterKeys(ctx context.Context, o client.Object) []schema.GroupResource {
	var imports apiresourcev1alpha1.APIResourceImportList
	if err := c.cache.List(ctx, &imports); err != nil {
		return nil // The context has ended.
	}
	var out []schema.GroupResource
	for i := range imports.Items {
		if spec := &imports.Items[i].Spec; spec.Location == o.GetName() {
			out = append(out, spec.GVR().GroupResource())
		}
	}
	return out
}
