package cluster

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/finalstate"
	"rik.dev/rik/internal/reconcile"
	"rik.dev/rik/internal/reconcile/runtimelog"
)

// workers is the number of concurrent passes over Clusters. They wait only for the kcp. Members
// wait for the physical clusters.
const workers = 4

// fieldManager is the field manager of the controller's part of a Cluster's status. The syncer
// has another one, so that neither removes the fields of the other.
const fieldManager = "rik-cluster-controller"

// Controller manages every Cluster of a kcp. New creates it. Run may be called once.
type Controller struct {
	config   Config
	upstream *rest.Config
	client   client.Client
	objects  metadata.Interface
	dynamic  dynamic.Interface
	types    discovery.DiscoveryInterface
	cache    cache.Cache
	queue    *reconcile.Queue[string]
	// recorder is set while Run runs.
	eventsClient typedcorev1.EventInterface
	recorder     record.EventRecorder
	metrics      *metrics
	now          func() time.Time
	// orphans are the result of the last sweep. Only one sweep runs at a time.
	orphans map[orphan]bool
	// cleared contains the objects whose status was removed, with the version that they had
	// then. Only sweeps use it.
	cleared map[types.UID]string

	mu sync.Mutex
	// uid is the UID of the kcp's namespace kube-system, once it is known.
	uid string
	// members and beats have the names of Clusters as keys. mu guards them.
	members map[string]*member
	beats   map[string]beat
}

// beat is the arrival of a heartbeat.
type beat struct {
	// written is the time in the heartbeat, which differs for each heartbeat.
	written metav1.Time
	// seen is when it arrived, by the clock of this controller. It is zero if the heartbeat
	// existed at the first read and is known to be old.
	seen time.Time
}

// New creates a controller. It does not connect yet.
func New(config Config) (*Controller, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the cluster controller: %w", err)
	}
	config = config.withDefaults()
	runtimelog.Set(config.Logger)
	c := &Controller{config: config, now: time.Now, members: map[string]*member{}, beats: map[string]beat{}, cleared: map[types.UID]string{}}
	if err := c.connect(); err != nil {
		return nil, fmt.Errorf("preparing the connection to the kcp: %w", err)
	}
	c.metrics = newMetrics(c.readiness)
	if config.Metrics != nil {
		if err := c.metrics.register(config.Metrics); err != nil {
			return nil, fmt.Errorf("registering the cluster controller's metrics: %w", err)
		}
	}
	c.queue = reconcile.New(reconcile.Options{Name: "clusters", Workers: workers, Logger: config.Logger}, c.reconcile)
	return c, nil
}

func (c *Controller) connect() error {
	c.upstream = rest.CopyConfig(c.config.Rest)
	// Types that a CRD serves support only JSON. The number of workers limits the requests.
	c.upstream.ContentType, c.upstream.AcceptContentTypes = "application/json", "application/json"
	c.upstream.QPS, c.upstream.Burst = -1, -1
	c.upstream.UserAgent = cmp.Or(c.upstream.UserAgent, fieldManager)
	http, err := rest.HTTPClientFor(c.upstream)
	if err != nil {
		return err
	}
	if c.client, err = client.New(c.upstream, client.Options{HTTPClient: http, Scheme: scheme, Mapper: mapper()}); err != nil {
		return err
	}
	if c.objects, err = metadata.NewForConfigAndClient(c.upstream, http); err != nil {
		return err
	}
	if c.dynamic, err = dynamic.NewForConfigAndClient(c.upstream, http); err != nil {
		return err
	}
	if c.types, err = discovery.NewDiscoveryClientForConfigAndClient(c.upstream, http); err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfigAndClient(c.upstream, http)
	if err != nil {
		return err
	}
	c.eventsClient = kube.CoreV1().Events(metav1.NamespaceAll)
	c.cache, err = cache.New(c.upstream, cache.Options{
		HTTPClient: http, Scheme: scheme, Mapper: mapper(), DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&apiresourcev1alpha1.APIResourceImport{}: {Transform: withoutSchema}},
	})
	return err
}

// withoutSchema removes the schemas from cached imports. With many clusters, they are most of the
// data of a kcp, and this package does not read them.
func withoutSchema(object any) (any, error) {
	if i, ok := object.(*apiresourcev1alpha1.APIResourceImport); ok {
		i.ManagedFields = nil
		i.Spec.OpenAPIV3Schema.Raw = nil
		i.Status.Obstacles, i.Status.Dropped = nil, nil
	}
	return object, nil
}

// Run works until ctx ends, and returns when everything has stopped, including the syncers that
// it runs.
func (c *Controller) Run(ctx context.Context) error {
	defer c.record(ctx)()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := c.cache.Start(ctx); err != nil {
			return fmt.Errorf("watching the kcp: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		defer c.stopAll()
		if err := c.watch(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		c.config.Logger.Info("the cluster controller runs", "mode", c.config.Mode, "resources", c.config.ResourcesToSync)
		c.queue.Add(everyObject)
		return c.queue.Run(ctx)
	})
	return group.Wait()
}

// everyObject is the key of a sweep. No Cluster can have this name.
const everyObject = ""

// watch queues passes for changes of Clusters, of their imports and of their kubeconfig Secrets.
func (c *Controller) watch(ctx context.Context) error {
	secrets := &metav1.PartialObjectMetadata{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	for _, w := range []struct {
		object client.Object
		keys   func(client.Object) []string
	}{
		{&workloadv1alpha1.Cluster{}, func(o client.Object) []string { return c.twins(ctx, o) }},
		{&apiresourcev1alpha1.APIResourceImport{}, func(o client.Object) []string {
			return []string{o.(*apiresourcev1alpha1.APIResourceImport).Spec.Location}
		}},
		{secrets, func(o client.Object) []string { return c.naming(ctx, client.ObjectKeyFromObject(o)) }},
	} {
		informer, err := c.cache.GetInformer(ctx, w.object)
		if err != nil {
			return fmt.Errorf("watching %T: %w", w.object, err)
		}
		if _, err := informer.AddEventHandler(c.enqueues(w.keys)); err != nil {
			return fmt.Errorf("watching %T: %w", w.object, err)
		}
	}
	if !c.cache.WaitForCacheSync(ctx) {
		return fmt.Errorf("filling the cache: %w", context.Cause(ctx))
	}
	return nil
}

func (c *Controller) enqueues(keys func(client.Object) []string) toolscache.ResourceEventHandler {
	add := func(object any) {
		if o, ok := finalstate.As[client.Object](object); ok {
			for _, key := range keys(o) {
				c.queue.Add(key)
			}
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: add, DeleteFunc: add, UpdateFunc: func(_, object any) { add(object) },
	}
}

// twins returns a Cluster and the other Clusters that need a pass with it. These have the same
// physical cluster, or a SameAs that refers to it.
func (c *Controller) twins(ctx context.Context, object client.Object) []string {
	names := []string{object.GetName()}
	cluster, ok := object.(*workloadv1alpha1.Cluster)
	list := &workloadv1alpha1.ClusterList{}
	if !ok || cluster.Status.UID == "" || c.cache.List(ctx, list, client.UnsafeDisableDeepCopy) != nil {
		return names
	}
	for i := range list.Items {
		if other := &list.Items[i]; other.Name != cluster.Name && other.Status.UID == cluster.Status.UID {
			names = append(names, other.Name)
		}
	}
	return names
}

// naming returns the Clusters whose kubeconfig is in a Secret.
func (c *Controller) naming(ctx context.Context, secret client.ObjectKey) []string {
	list := &workloadv1alpha1.ClusterList{}
	if err := c.cache.List(ctx, list); err != nil {
		return nil // the cache is ending or not yet filled: every Cluster gets a pass then
	}
	var names []string
	for i := range list.Items {
		if ref := list.Items[i].Spec.KubeconfigSecretRef; ref != nil && ref.Namespace == secret.Namespace && ref.Name == secret.Name {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// memberOf returns the running member of a Cluster, or nil if the Cluster has none.
func (c *Controller) memberOf(name string) *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[name]
}

// stop stops the member of a Cluster and waits for its end.
func (c *Controller) stop(name string) {
	c.mu.Lock()
	m := c.members[name]
	delete(c.members, name)
	c.mu.Unlock()
	if m != nil {
		m.stop()
	}
}

func (c *Controller) stopAll() {
	c.mu.Lock()
	members := c.members
	c.members = map[string]*member{}
	c.mu.Unlock()
	for _, m := range members {
		m.cancel()
	}
	for _, m := range members {
		m.stop()
	}
}
