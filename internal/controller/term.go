package controller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/deployment"
	"rik.dev/rik/internal/controller/fence"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/instance"
	"rik.dev/rik/internal/controller/network"
	"rik.dev/rik/internal/controller/node"
	"rik.dev/rik/internal/controller/scheduling"
	"rik.dev/rik/internal/controller/tenant"
	"rik.dev/rik/internal/controller/workload"
	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/finalstate"
	"rik.dev/rik/internal/wakeup"
)

// settledContact is how long the scheduler must be lost, or back, before pending instances show
// that. A short restart of the scheduler does not justify a write for each of them.
const settledContact = 5 * time.Second

// suffixAlphabet has no vowels, so that no suffix forms a word.
const suffixAlphabet = "bcdfghjklmnpqrstvwxz2456789"

// term holds everything that exists only while this controller is active: views, reconcilers
// and the stream to the scheduler. They are created again for each term. The view of instances
// is a scope of the process's index, which stays.
type term struct {
	number      int64
	controller  *Controller
	broadcaster events.EventBroadcaster

	nodeView      *index.Objects[*rikv1alpha1.Node]
	workloadView  *index.Objects[*rikv1alpha1.Workload]
	revisionView  *index.Objects[*rikv1alpha1.WorkloadRevision]
	tenantView    *index.Objects[*rikv1alpha1.Tenant]
	deployView    *index.Objects[*appsv1.Deployment]
	instanceView  *index.Instances
	registrations []registration
	// over ends the run so that another term can begin.
	over wakeup.Signal

	tombstones *instance.Tombstones
	deleted    *node.Deleted
	scheduler  *scheduling.Client
	instances  *instance.Reconciler
	nodes      *node.Reconciler
	table      *network.Table
	fences     *fence.Reconciler
	workloads  *workload.Reconciler
	tenants    *tenant.Reconciler
	deploys    *deployment.Reconciler
}

type registration struct {
	informer cache.Informer
	handle   toolscache.ResourceEventHandlerRegistration
}

func newTerm(c *Controller, number int64, cluster string, restored bool) *term {
	t := &term{
		number: number, controller: c, over: wakeup.New(),
		broadcaster:  events.NewBroadcaster(&events.EventSinkImpl{Interface: c.clients.EventsV1()}),
		nodeView:     index.NewObjects[*rikv1alpha1.Node](),
		workloadView: index.NewObjects[*rikv1alpha1.Workload](),
		revisionView: index.NewObjects[*rikv1alpha1.WorkloadRevision](),
		tenantView:   index.NewObjects[*rikv1alpha1.Tenant](),
		deployView:   index.NewObjects[*appsv1.Deployment](),
		instanceView: c.instances.Scope(),
		tombstones:   instance.NewTombstones(c.acting, Namespace, c.now),
		deleted:      node.NewDeleted(c.acting, Namespace, c.now),
	}
	logger := c.config.Logger
	recorder := bounded{t.broadcaster.NewRecorder(Scheme, "rik-controller")}
	t.scheduler = scheduling.New(scheduling.Config{
		Dial: c.config.SchedulerDial, Identity: c.config.Identity, Term: number, Cluster: cluster, Restored: restored,
		DeletedNodes: t.deleted.All, Active: func() error { _, _, err := c.leads.check(); return err },
		Instances: t.instanceView, Nodes: t.nodeView, Revisions: t.revisionView,
		Tombstones: t.tombstones.All, Sink: sink{t}, Logger: logger, Metrics: c.metrics.scheduling,
	})
	ranges, addresses := t.allocators()
	t.nodes = node.New(node.Config{
		Client: c.acting, Nodes: t.nodeView, Instances: t.instanceView, Ranges: ranges,
		Events: recorder, Logger: logger, Now: c.now, NodeTimeout: c.config.NodeTimeout,
		Term: number, Raise: t.raise, Deleted: t.deleted,
	})
	t.instances = instance.New(instance.Config{
		View: t.instanceView, Store: c.config.Instances, Scheduler: t.scheduler, Nodes: t.nodes.Facts,
		Contact: t.nodes.Contact, Settled: min(settledContact, c.config.NodeTimeout/4),
		Tombstones: t.tombstones, Events: recorder, Logger: logger, Now: c.now, Workers: c.config.Writes,
	})
	t.fences = fence.New(fence.Config{
		Client: c.acting, Workloads: t.workloadView, Logger: logger, Now: c.now, Name: suffix,
		Changed: func(key types.NamespacedName) { t.workloads.EnqueueWorkload(key) },
	})
	t.deploys = deployment.New(deployment.Config{
		Client: c.acting, Deployments: t.deployView, Workloads: t.workloadView,
		Events: recorder, Logger: logger, Now: c.now, Workers: 8,
	})
	t.workloads = workload.New(workload.Config{
		Client: c.acting, Store: c.config.Instances, Workloads: t.workloadView, Revisions: t.revisionView,
		Instances: t.instanceView, Disposition: t.nodes.Disposition, ReplaceAfter: c.config.ReplaceAfter,
		Addresses: addresses.Of, Fenced: t.fenced, OwnerWaits: t.deploys.Waits, Events: recorder, Logger: logger, Now: c.now, Suffix: suffix, Workers: 16, Writes: c.config.Writes,
	})
	t.tenants = tenant.New(tenant.Config{
		Client: c.acting, Tenants: t.tenantView, Instances: t.instanceView,
		Events: recorder, Logger: logger, Now: c.now,
	})
	t.table = network.NewTable(network.Config{
		Settings: c.settings, Nodes: t.nodeView, Workloads: t.workloadView, Revisions: t.revisionView,
		Instances: t.instanceView, Seen: t.seen, Carries: t.nodes.Carries, Ranges: ranges, Addresses: addresses,
	})
	t.nodes.OnChange(t.table.NodeChanged)
	t.nodes.OnChange(t.instances.Enqueue)
	t.nodes.OnChange(t.workloads.Enqueue)
	return t
}

// allocators creates the allocators of addresses for nodes and workloads. They subscribe before
// the reconcilers, which use them.
func (t *term) allocators() (*network.Ranges, *network.Addresses) {
	settings := t.controller.settings
	ranges := network.NewRanges(settings, func(name string) { t.nodes.Enqueue(name) })
	addresses := network.NewAddresses(settings, t.workloadView, t.nodeView, func(key types.NamespacedName) { t.workloads.EnqueueWorkload(key) })
	t.nodeView.Subscribe(ranges.Observe)
	t.nodeView.Subscribe(addresses.ObserveNode)
	t.workloadView.Subscribe(addresses.Observe)
	return ranges, addresses
}

// fenced says why no instance of a workload may run now. It is empty if they may run.
func (t *term) fenced(ctx context.Context, w *rikv1alpha1.Workload) (string, error) {
	return t.fences.Evaluate(ctx, w)
}

// raise ends this term for one above the given term.
func (t *term) raise(ctx context.Context, above int64) error {
	if err := raiseTerm(ctx, t.controller.client, above); err != nil {
		return err
	}
	t.over.Wake()
	return nil
}

// seen reports whether new connections may go to a node.
func (t *term) seen(name string) bool {
	facts := t.nodes.Facts(name)
	return facts.Exists && !facts.Silent
}

// suffix returns the end of a new instance's name.
func suffix() string {
	out := make([]byte, 5)
	for i := range out {
		out[i] = suffixAlphabet[rand.IntN(len(suffixAlphabet))]
	}
	return string(out)
}

// run fills the views, then works until ctx ends.
func (t *term) run(ctx context.Context) error {
	if err := t.broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("starting to record events: %w", err)
	}
	defer t.broadcaster.Shutdown()
	defer t.detach()
	if err := t.attach(ctx); err != nil {
		return err
	}
	if err := t.tombstones.Load(ctx); err != nil {
		return err
	}
	if err := t.deleted.Load(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		select {
		case <-t.over:
			return errRaised
		case <-ctx.Done():
			return nil
		}
	})
	for _, run := range []func(context.Context) error{
		t.nodes.Run, t.instances.Run, t.fences.Run, t.workloads.Run, t.tenants.Run, t.deploys.Run, t.scheduler.Run,
	} {
		group.Go(func() error { return run(ctx) })
	}
	t.controller.network.Set(t.table)
	defer t.controller.network.Set(nil)
	t.controller.becomeReady()
	return group.Wait()
}

// syncPoll is the interval at which attach checks whether the first listings are complete.
const syncPoll = 10 * time.Millisecond

// attach connects the views to the watches and waits until all views are full. No reconciler
// runs yet, so the order does not matter.
func (t *term) attach(ctx context.Context) error {
	changed := func(o client.Object) { t.tenants.Enqueue(o.GetLabels()[rikv1alpha1.LabelTenant]) }
	problems := []error{
		follow(ctx, t, &rikv1alpha1.Node{}, t.nodeView.Observe, t.nodeView.Remove),
		follow(ctx, t, &rikv1alpha1.WorkloadRevision{}, t.revisionView.Observe, t.revisionView.Remove),
		follow(ctx, t, &rikv1alpha1.Workload{}, t.workloadView.Observe, t.workloadView.Remove),
		follow(ctx, t, &rikv1alpha1.Tenant{}, t.tenantView.Observe, t.tenantView.Remove),
		follow(ctx, t, &coordinationv1.Lease{}, t.fences.Observe, t.fences.Remove),
		follow(ctx, t, &appsv1.Deployment{}, t.deployView.Observe, t.deployView.Remove),
		follow(ctx, t, &corev1.Namespace{}, touch[*corev1.Namespace](changed), touch[*corev1.Namespace](changed)),
		follow(ctx, t, &rbacv1.Role{}, touch[*rbacv1.Role](changed), touch[*rbacv1.Role](changed)),
		follow(ctx, t, &rbacv1.RoleBinding{}, touch[*rbacv1.RoleBinding](changed), touch[*rbacv1.RoleBinding](changed)),
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	err := wait.PollUntilContextCancel(ctx, syncPoll, true, func(context.Context) (bool, error) {
		behind := func(r registration) bool { return !r.handle.HasSynced() }
		return !slices.ContainsFunc(t.registrations, behind), nil
	})
	if err != nil {
		return fmt.Errorf("reading the existing objects: %w", err)
	}
	select {
	case <-t.instanceView.Synced():
	case <-ctx.Done():
		return fmt.Errorf("reading the existing instances: %w", context.Cause(ctx))
	}
	t.instanceView.Begin()
	return nil
}

func touch[T client.Object](f func(client.Object)) func(T) {
	return func(o T) { f(o) }
}

// follow passes every object of a kind to observe, and to remove when it was deleted.
func follow[T client.Object](ctx context.Context, t *term, kind T, observe, remove func(T)) error {
	informer, err := t.controller.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching %T: %w", kind, err)
	}
	handle, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { deliver(o, observe) },
		UpdateFunc: func(_, o any) { deliver(o, observe) },
		DeleteFunc: func(o any) { deliver(o, remove) },
	})
	if err != nil {
		return fmt.Errorf("watching %T: %w", kind, err)
	}
	t.registrations = append(t.registrations, registration{informer, handle})
	return nil
}

func deliver[T client.Object](o any, to func(T)) {
	if object, ok := finalstate.As[T](o); ok {
		to(object)
	}
}

func (t *term) detach() {
	t.instanceView.End()
	for _, r := range t.registrations {
		if err := r.informer.RemoveEventHandler(r.handle); err != nil {
			t.controller.config.Logger.Warn("leaving a watch", "err", err)
		}
	}
}

// sink passes the scheduler's messages to the reconcilers that handle them.
type sink struct{ t *term }

func (s sink) SessionBegan() {
	s.t.nodes.SessionBegan()
	s.t.instances.Reset()
}

func (s sink) Welcomed() {
	s.t.nodes.Welcomed()
	s.t.instances.ContactChanged()
}

func (s sink) SessionEnded() {
	s.t.nodes.SessionEnded()
	s.t.instances.ContactChanged()
}

func (s sink) Bind(uid types.UID, b instance.Binding) { s.t.instances.Bind(uid, b) }

func (s sink) Explain(uid types.UID, u instance.Unplaced) { s.t.instances.Explain(uid, u) }

func (s sink) Observe(uid types.UID, o instance.Observation) { s.t.instances.Observe(uid, o) }

func (s sink) Displace(uid, forUID types.UID) { s.t.workloads.Displace(uid, forUID) }

func (s sink) Report(name string, r node.Report) { s.t.nodes.Take(name, r) }

// bounded cuts events to the limits of the API, because their texts come from nodes.
type bounded struct{ events.EventRecorder }

const (
	maxReason = 128
	maxNote   = 1000
)

func (b bounded) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	text := fmt.Sprintf(note, args...)
	if reason == "" {
		reason = "Unknown"
	}
	b.EventRecorder.Eventf(regarding, related, kind, excerpt.Prefix(reason, maxReason), action, "%s", excerpt.Prefix(text, maxNote))
}
