// Package controller is the active part of a cluster's control plane: it
// starts, follows, replaces and ends instances, and keeps nodes and tenants.
// One controller is active at a time, under a Lease whose term fences off
// earlier ones.
//
// The reconcilers are in the packages below: workload, instance, node, tenant;
// network gives out addresses and tells nodes of each other; scheduling is the stream to the scheduler. They meet here and read from the
// views that the watches fill.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/internal/controller/fence"
	"rik.dev/rik/internal/controller/network"
	"rik.dev/rik/internal/controller/store"
	"rik.dev/rik/internal/reconcile/runtimelog"
)

// What Config's zero values mean.
const (
	DefaultReplaceAfter = 60 * time.Second
	// DefaultNodeTimeout is the scheduler's.
	DefaultNodeTimeout = 20 * time.Second
	// DefaultWrites in flight: etcd batches what arrives during one fsync.
	DefaultWrites = 256
	// electionPause is between two attempts to become the active controller.
	electionPause = time.Second
)

// Config is what a controller is made of.
type Config struct {
	// RestConfig reaches the API server as rik:controller. Required.
	RestConfig *rest.Config
	// Instances writes Instances; a client over RestConfig by default.
	Instances store.Instances
	// SchedulerDial connects to the scheduler; it is called again after a
	// connection broke. Required.
	SchedulerDial func(ctx context.Context) (*grpc.ClientConn, error)
	// Identity names this controller in the Lease and in the log. Required.
	Identity string
	// LeaderElection waits for other controllers to give up the Lease. Without
	// it this is the only one and takes the Lease over at once.
	LeaderElection bool
	// ReplaceAfter is the silence of a node after which its instances are
	// replaced: DefaultReplaceAfter when 0.
	ReplaceAfter time.Duration
	// NodeTimeout is the time without a scheduler, to whom nodes speak, after which
	// nodes and instances are shown as Unknown; the scheduler has the same for the
	// silence of one node. DefaultNodeTimeout when 0.
	NodeTimeout time.Duration
	// Network holds the ranges of addresses and the domain; each has a default.
	Network network.Options
	// Writes in flight: DefaultWrites when 0.
	Writes int
	// Logger is slog.Default when nil.
	Logger *slog.Logger
	// Metrics registers the controller's metrics; none when nil.
	Metrics prometheus.Registerer
}

// Validate reports every problem.
func (c *Config) Validate() error {
	var problems []error
	if c.RestConfig == nil {
		problems = append(problems, errors.New("RestConfig is required"))
	}
	if c.SchedulerDial == nil {
		problems = append(problems, errors.New("SchedulerDial is required"))
	}
	if c.Identity == "" {
		problems = append(problems, errors.New("an Identity is required"))
	}
	if c.ReplaceAfter < 0 || c.NodeTimeout < 0 || c.Writes < 0 {
		problems = append(problems, errors.New("ReplaceAfter, NodeTimeout and Writes may not be negative"))
	}
	_, err := c.Network.Parse()
	return errors.Join(append(problems, err)...)
}

// Controller runs the reconcilers while it is the active one.
type Controller struct {
	config Config
	client client.Client
	// acting is the client of the active controller: it writes only while the lease is held.
	acting  client.Client
	leads   *leadership
	clients kubernetes.Interface
	cache   cache.Cache
	metrics *metrics
	// network tells nodes the table while this controller is the active one.
	network  *network.Publisher
	settings network.Settings
	now      func() time.Time

	ready     chan struct{}
	readyOnce sync.Once

	mu sync.RWMutex
	// active is guarded by mu; nil while another controller is the active one.
	active *term
}

// New makes a controller. It connects to nothing yet.
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
		config: c, ready: make(chan struct{}), now: time.Now,
		network: network.NewPublisher(), settings: settings, leads: &leadership{},
	}
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
	// The workers bound themselves; a limit in the client would only queue.
	config.QPS, config.Burst = -1, 0
	if config.UserAgent == "" {
		config.UserAgent = "rik-controller"
	}
	shared, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("preparing the connection to the API server: %w", err)
	}
	c.client, err = client.New(config, client.Options{HTTPClient: shared, Scheme: Scheme, Mapper: mapper()})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	acting := rest.CopyConfig(config)
	acting.Wrap(func(inner http.RoundTripper) http.RoundTripper { return active{inner, c.leads} })
	if c.acting, err = client.New(acting, client.Options{Scheme: Scheme, Mapper: mapper()}); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	c.clients, err = kubernetes.NewForConfigAndClient(config, shared)
	if err != nil {
		return fmt.Errorf("making a clientset: %w", err)
	}
	c.cache, err = cache.New(config, cacheOptions(shared))
	if err != nil {
		return fmt.Errorf("making a cache: %w", err)
	}
	return nil
}

// Cache is the cache that the controller fills while it runs, active or not;
// other services of the same process may read from it and add informers to it.
func (c *Controller) Cache() cache.Cache { return c.cache }

// Client reads past every cache, and writes.
func (c *Controller) Client() client.Client { return c.client }

// Network tells nodes what they have to know of the network between instances.
func (c *Controller) Network() *network.Publisher { return c.network }

// Fence says how long ago the kcp that a namespace belongs to was last known to be in
// touch with this cluster, if it ever was; found is false for a namespace that belongs to
// none. It may be asked of a controller that is not the active one.
func (c *Controller) Fence(ctx context.Context, namespace string) (age time.Duration, proven, found bool, err error) {
	if t := c.current(); t != nil {
		return t.fences.Age(ctx, namespace)
	}
	return fence.Ask(ctx, c.client, namespace, c.now())
}

// Ready is closed once the caches are filled and either the reconcilers run or
// another controller is known to be the active one.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

func (c *Controller) becomeReady() { c.readyOnce.Do(func() { close(c.ready) }) }

// Run works until ctx ends and returns when everything has stopped. It runs once.
func (c *Controller) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := c.cache.Start(ctx); err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
		return nil
	})
	group.Go(func() error { return c.compete(ctx) })
	return group.Wait()
}

// compete becomes the active controller, again and again, until ctx ends.
func (c *Controller) compete(ctx context.Context) error {
	for ctx.Err() == nil {
		err := c.attempt(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end
		}
		c.config.Logger.Warn("no longer the active controller", "again", electionPause, "err", err)
		timer := time.NewTimer(electionPause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

func (c *Controller) attempt(ctx context.Context) error {
	if err := ensureNamespace(ctx, c.client, Namespace); err != nil {
		return err
	}
	if c.config.LeaderElection {
		standby := func() {
			c.config.Logger.Info("another controller is the active one")
			c.becomeReady()
		}
		return elect(ctx, c.clients, c.leads, c.config.Identity, standby, c.lead)
	}
	number, err := takeLease(ctx, c.client, c.config.Identity, c.now)
	if err != nil {
		return err
	}
	return c.lead(ctx, number)
}

// lead runs the reconcilers of one term.
func (c *Controller) lead(ctx context.Context, number int64) error {
	c.leads.begin(number, c.config.LeaderElection)
	defer c.leads.end()
	if err := c.establish(ctx); err != nil {
		return err
	}
	cluster, err := c.cluster(ctx)
	if err != nil {
		return err
	}
	c.config.Logger.Info("this is the active controller", "term", number, "cluster", cluster)
	t := newTerm(c, number, cluster)
	c.setActive(t)
	defer c.setActive(nil)
	return t.run(ctx)
}

// cluster is the identity of the cluster for its nodes: the UID of the namespace
// kube-system, which lives as long as the datastore's content, and by which other tools know
// a cluster too.
func (c *Controller) cluster(ctx context.Context) (string, error) {
	// The API server makes it too, a moment after its first start.
	if err := ensureNamespace(ctx, c.client, metav1.NamespaceSystem); err != nil {
		return "", err
	}
	system := &corev1.Namespace{}
	if err := c.client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		return "", fmt.Errorf("reading the cluster's identity: %w", err)
	}
	return string(system.UID), nil
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
