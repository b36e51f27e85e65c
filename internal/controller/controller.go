// Package controller is the active part of a cluster's control plane. It starts, tracks,
// replaces and ends instances, and manages nodes and tenants. One controller is active at a
// time. It holds a Lease, whose term fences off earlier controllers.
//
// The reconcilers are in the packages below: workload, instance, node and tenant. Package
// network allocates addresses and sends nodes the netmap. Package scheduling is the stream to
// the scheduler. This package connects them. They read from the views that the watches fill.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/internal/controller/fence"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/measurement"
	"rik.dev/rik/internal/controller/network"
	"rik.dev/rik/internal/controller/store"
	"rik.dev/rik/internal/controllerterm"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/reconcile/runtimelog"
	"rik.dev/rik/internal/wakeup"
)

// Defaults of Config.
const (
	DefaultReplaceAfter = 60 * time.Second
	// DefaultNodeTimeout is the same as the scheduler's.
	DefaultNodeTimeout = 20 * time.Second
	// DefaultWrites is the default number of writes in flight: etcd batches the writes that
	// arrive during one fsync.
	DefaultWrites = 256
	// electionPause is the pause between two attempts to become the active controller.
	electionPause = time.Second
)

// Config configures a Controller.
type Config struct {
	// RestConfig connects to the API server as rik:controller. Required.
	RestConfig *rest.Config
	// Instances writes Instances. The default is a client over RestConfig.
	Instances store.Instances
	// SchedulerDial connects to the scheduler. It is called again after a connection broke.
	// Required.
	SchedulerDial func(ctx context.Context) (*grpc.ClientConn, error)
	// Identity names this controller in the Lease and in the log. Required.
	Identity string
	// LeaderElection waits until other controllers release the Lease. Without it this controller
	// must be the only one, and takes over the Lease at once.
	LeaderElection bool
	// SharedDatastore means that another server may use the datastore at the same time. The
	// controller then always waits for the Lease, even if the administrator forgot the flag.
	SharedDatastore bool
	// Several means that this is one of several servers with an embedded etcd. Elect sets it later.
	Several bool
	// ReplaceAfter is the time without a message from a node after which its instances are
	// replaced. Zero means DefaultReplaceAfter.
	ReplaceAfter time.Duration
	// NodeTimeout is the time without a scheduler after which nodes and instances are shown as
	// Unknown, because nodes report to the scheduler. The scheduler uses the same time for a node
	// without a message. Zero means DefaultNodeTimeout.
	NodeTimeout time.Duration
	// Network holds the address ranges and the domain. Each has a default.
	Network network.Options
	// Writes is the number of writes in flight. Zero means DefaultWrites.
	Writes int
	// Logger is slog.Default when nil.
	Logger *slog.Logger
	// Metrics registers the controller's metrics. It is optional.
	Metrics prometheus.Registerer
}

// elects reports whether the controller takes part in an election. Two controllers of one datastore
// must not act at the same time.
func (c *Config) elects() bool { return c.LeaderElection || c.SharedDatastore }

// ProcessIdentity returns an Identity for the controller of this process.
func ProcessIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("reading the host name: %w", err)
	}
	// The Lease adds a suffix after an underscore.
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(host, "_", "-"), os.Getpid()), nil
}

// Validate reports every problem in a configuration.
func (c *Config) Validate() error {
	var problems []error
	if c.RestConfig == nil {
		problems = append(problems, errors.New("RestConfig is required"))
	}
	if c.SchedulerDial == nil {
		problems = append(problems, errors.New("SchedulerDial is required"))
	}
	if c.Identity == "" {
		problems = append(problems, errors.New("Identity is required"))
	}
	if c.ReplaceAfter < 0 || c.NodeTimeout < 0 || c.Writes < 0 {
		problems = append(problems, errors.New("ReplaceAfter, NodeTimeout and Writes must not be negative"))
	}
	_, err := c.Network.Parse()
	return errors.Join(append(problems, err)...)
}

// Controller runs the reconcilers while it is the active controller.
type Controller struct {
	config Config
	client client.WithWatch
	// acting is the client of the active controller. It writes only while the lease is held.
	acting  client.Client
	leads   *leadership
	clients kubernetes.Interface
	// cache holds all objects but instances.
	cache     cache.Cache
	instances *index.Instances
	metrics   *metrics
	// measured is filled whether this controller is active or not. A new term needs no new
	// measurements.
	measured *measurement.Store
	// network sends nodes the netmap while this controller is active.
	network  *network.Publisher
	settings network.Settings
	now      func() time.Time
	// several is set while this is one of several servers with an embedded etcd.
	several atomic.Bool
	// elected ends a term that was taken without an election.
	elected wakeup.Signal
	// holder is who holds the Lease, as this controller knows.
	holder holder

	ready     chan struct{}
	readyOnce sync.Once

	mu sync.RWMutex
	// active is guarded by mu. It is nil while another controller is active.
	active *term
}

// New creates a controller. It does not connect yet.
func New(c Config) (*Controller, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the controller: %w", err)
	}
	if c.ReplaceAfter == 0 {
		c.ReplaceAfter = DefaultReplaceAfter
	}
	if c.NodeTimeout == 0 {
		c.NodeTimeout = DefaultNodeTimeout
	}
	if c.Writes == 0 {
		c.Writes = DefaultWrites
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	runtimelog.Set(c.Logger)
	settings, err := c.Network.Parse()
	if err != nil {
		return nil, err
	}
	out := &Controller{
		config: c, ready: make(chan struct{}), now: time.Now, instances: index.NewInstances(),
		measured: measurement.NewStore(), network: network.NewPublisher(), settings: settings, leads: &leadership{},
		elected: wakeup.New(), holder: newHolder(),
	}
	out.several.Store(c.Several)
	if err := out.connect(); err != nil {
		return nil, err
	}
	if c.Instances == nil {
		c.Instances = store.OverClient(out.client)
	}
	out.metrics = newMetrics()
	out.config.Instances = activeStore{counted{inner: c.Instances, writes: out.metrics.writes}, out.leads}
	if c.Metrics != nil {
		if err := out.metrics.register(c.Metrics); err != nil {
			return nil, fmt.Errorf("registering the controller's metrics: %w", err)
		}
	}
	return out, nil
}

func (c *Controller) connect() error {
	config := rest.CopyConfig(c.config.RestConfig)
	// The reconcilers limit their own concurrency. A limit in the client would only delay
	// requests.
	config.QPS, config.Burst = -1, 0
	if config.UserAgent == "" {
		config.UserAgent = "rik-controller"
	}
	shared, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("preparing the connection to the API server: %w", err)
	}
	c.client, err = client.NewWithWatch(config, client.Options{HTTPClient: shared, Scheme: Scheme, Mapper: mapper()})
	if err != nil {
		return fmt.Errorf("creating a client: %w", err)
	}
	acting := rest.CopyConfig(config)
	acting.Wrap(func(inner http.RoundTripper) http.RoundTripper { return active{inner, c.leads} })
	if c.acting, err = client.New(acting, client.Options{Scheme: Scheme, Mapper: mapper()}); err != nil {
		return fmt.Errorf("creating a client: %w", err)
	}
	c.clients, err = kubernetes.NewForConfigAndClient(config, shared)
	if err != nil {
		return fmt.Errorf("creating a clientset: %w", err)
	}
	c.cache, err = cache.New(config, cacheOptions(shared))
	if err != nil {
		return fmt.Errorf("creating a cache: %w", err)
	}
	return nil
}

// Instances is the index that the controller fills while it runs, active or not. Other services
// of the same process may read from it, and subscribe to it before Run.
func (c *Controller) Instances() *index.Instances { return c.instances }

// Cache is the cache of all other objects that the controller fills while it runs, active or
// not. Other services of the same process may read from it and add informers to it.
func (c *Controller) Cache() cache.Cache { return c.cache }

// Client reads from the API server without a cache, and writes.
func (c *Controller) Client() client.Client { return c.client }

// Measurements returns the store of the usages that MetricsHandler shows. The server of the
// nodes fills it.
func (c *Controller) Measurements() *measurement.Store { return c.measured }

// Network returns the publisher that sends nodes the netmap.
func (c *Controller) Network() *network.Publisher { return c.network }

// Fence returns the time since the last proof of contact with the kcp of a namespace. proven is
// false if there was no proof yet. found is false for a namespace that does not belong to a
// kcp. Fence also works on a controller that is not active.
func (c *Controller) Fence(ctx context.Context, namespace string) (age time.Duration, proven, found bool, err error) {
	if t := c.current(); t != nil {
		return t.fences.Age(ctx, namespace)
	}
	return fence.Ask(ctx, c.client, namespace, c.now())
}

// Active reports whether this controller is the active one.
func (c *Controller) Active() bool { return c.current() != nil }

// Ready is closed once the caches are filled and either the reconcilers run or another
// controller is active.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

func (c *Controller) becomeReady() { c.readyOnce.Do(func() { close(c.ready) }) }

// Run runs the controller until ctx ends, and returns when all its work has stopped. Call it
// once.
func (c *Controller) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := c.cache.Start(ctx); err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
		return nil
	})
	group.Go(func() error { return c.instances.Follow(ctx, c.client) })
	group.Go(func() error { return c.compete(ctx) })
	return group.Wait()
}

// compete tries to become the active controller, again and again, until ctx ends.
func (c *Controller) compete(ctx context.Context) error {
	for ctx.Err() == nil {
		err := c.attempt(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end
		}
		if errors.Is(err, errElects) {
			c.config.Logger.Info("this controller takes part in an election now")
			continue
		}
		c.config.Logger.Warn("this is not the active controller any more", "again", electionPause, "err", err)
		pause.For(ctx, electionPause)
	}
	return nil
}

func (c *Controller) attempt(ctx context.Context) error {
	if err := ensureNamespace(ctx, c.client, Namespace); err != nil {
		return err
	}
	if c.elects() {
		standby := func(holder string) {
			c.config.Logger.Info("another controller is the active one", "holder", holder)
			c.holder.set(holder)
			c.becomeReady()
		}
		return elect(ctx, c.clients, c.leads, c.config.Identity, c.timing(), standby, c.lead)
	}
	return c.leadAlone(ctx)
}

// elects reports whether this controller takes part in an election.
func (c *Controller) elects() bool { return c.config.elects() || c.several.Load() }

func (c *Controller) timing() timing {
	if c.several.Load() {
		return timing{promptLease, promptRenew, promptRetry}
	}
	return timing{leaseDuration, renewDeadline, retryPeriod}
}

// leadAlone runs a term without an election, until Elect is called.
func (c *Controller) leadAlone(ctx context.Context) error {
	number, err := takeLease(ctx, c.client, c.config.Identity, c.now)
	if err != nil {
		return err
	}
	leading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		select {
		case <-c.elected:
			cancel(errElects)
		case <-leading.Done():
		}
	})
	err = c.lead(leading, number)
	if cause := context.Cause(leading); !errors.Is(cause, errElects) {
		cancel(nil)
		return err
	}
	return errors.Join(errElects, releaseLease(ctx, c.client, c.config.Identity, c.now))
}

// errElects ends a term so that the next one is the result of an election.
var errElects = errors.New("another server has joined, so the servers elect the active controller")

// Elect makes this controller take part in an election from now on, because another server with the
// same datastore joins. A term that was taken without one ends, and the next one begins at once.
func (c *Controller) Elect() {
	if !c.several.Swap(true) {
		c.elected.Wake()
	}
}

// Holder returns the identity of the active controller, as far as this one knows. changed is closed
// when that changes.
func (c *Controller) Holder() (identity string, changed <-chan struct{}) { return c.holder.get() }

// lead runs the reconcilers of one term.
func (c *Controller) lead(ctx context.Context, number int64) error {
	c.leads.begin(number, c.elects())
	defer c.leads.end()
	c.holder.set(c.config.Identity)
	defer c.holder.set("")
	if err := c.establish(ctx); err != nil {
		return err
	}
	cluster, err := c.cluster(ctx)
	if err != nil {
		return err
	}
	c.config.Logger.Info("this is the active controller now", "term", number, "cluster", cluster)
	restored, err := c.restored(ctx)
	if err != nil {
		return err
	}
	t := newTerm(c, number, cluster, restored)
	c.setActive(t)
	defer c.setActive(nil)
	return t.run(ctx)
}

// cluster returns the cluster's identity, which is sent to the nodes. It is the UID of the
// namespace kube-system, which lives as long as the datastore's content. Other tools identify a
// cluster by it too.
func (c *Controller) cluster(ctx context.Context) (string, error) {
	// The API server creates this namespace too, shortly after its first start.
	if err := ensureNamespace(ctx, c.client, metav1.NamespaceSystem); err != nil {
		return "", err
	}
	system := &corev1.Namespace{}
	if err := c.client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		return "", fmt.Errorf("reading the cluster's identity: %w", err)
	}
	return string(system.UID), nil
}

// restored reports whether the cluster was restored from a backup, and no administrator has
// finished that.
func (c *Controller) restored(ctx context.Context) (bool, error) {
	lease := &coordinationv1.Lease{}
	if err := c.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: LeaseName}, lease); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("reading whether the cluster was restored: %w", err)
	}
	from := lease.Annotations[controllerterm.AnnotationRestored]
	if from != "" {
		c.config.Logger.Warn("the cluster was restored from a backup; nodes keep instances that it has no record of; next: rikctl restore status", "backup", from)
	}
	return from != "", nil
}

func (c *Controller) setActive(t *term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active = t
	c.metrics.active(t)
}

func (c *Controller) current() *term {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.active
}
