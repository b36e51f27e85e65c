// Package instance is the only writer of Instances. It makes bindings durable, translates
// observations into phases, and releases instances that have ended.
//
// Reads: the view of instances, the node facts, and the scheduler's messages (bindings,
// explanations, observations). The messages are kept in memory, the latest of each kind per
// instance. A slow store delays them, and the latest is never lost.
// Writes: Instances, and tombstones of instances that were given up.
//
// Next, a pure function, makes the decisions. Reconciler executes them.
package instance

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/store"
	"rik.dev/rik/internal/reconcile"
)

// maxBackoff bounds the delay after errors. It can be short: the number of workers bounds the
// load on a store in trouble, and a waiting binding holds resources.
const maxBackoff = 5 * time.Second

// Scheduler receives the results of its proposals. Its methods do not block.
type Scheduler interface {
	// Acknowledge reports that a binding to the node is durable, or was refused.
	Acknowledge(uid types.UID, node string, durable bool)
	// Tombstone reports that the node may not run the UID.
	Tombstone(t Tombstone)
}

// Config configures a Reconciler. All fields are required.
type Config struct {
	View      *index.Instances
	Store     store.Instances
	Scheduler Scheduler
	Nodes     func(name string) NodeFacts
	// Contact is the state of the connection to the scheduler. A state counts once it has lasted
	// for the time Settled.
	Contact    func() Contact
	Settled    time.Duration
	Tombstones *Tombstones
	Events     events.EventRecorder
	Logger     *slog.Logger
	Now        func() time.Time
	// Workers bounds the writes in flight.
	Workers int
}

// news holds the scheduler's latest messages about one instance.
type news struct {
	binding     *Binding
	unplaced    *Unplaced
	observation *Observation
	// old means that the observation is from an earlier session.
	old bool
}

// Reconciler reconciles instances.
type Reconciler struct {
	config Config
	queue  *reconcile.Queue[types.NamespacedName]
	// confirmed queues tombstones that their nodes have confirmed.
	confirmed *reconcile.Queue[Tombstone]

	mu sync.Mutex
	// news is guarded by mu.
	news map[types.UID]*news
}

// New creates a reconciler and subscribes it to the view.
func New(c Config) *Reconciler {
	r := &Reconciler{config: c, news: map[types.UID]*news{}}
	r.queue = reconcile.New(reconcile.Options{
		Name: "instances", Workers: c.Workers, Logger: c.Logger, MaxBackoff: maxBackoff,
	}, r.reconcile)
	r.confirmed = reconcile.New(reconcile.Options{Name: "tombstones", Logger: c.Logger}, r.confirm)
	c.View.Subscribe(r.onChange)
	return r
}

// Run works until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error { return r.queue.Run(ctx) })
	group.Go(func() error { return r.confirmed.Run(ctx) })
	return group.Wait()
}

// Waiting returns the number of instances that wait for a pass.
func (r *Reconciler) Waiting() int { return r.queue.Len() }

// Enqueue requests a pass over the instances of a node whose facts changed.
func (r *Reconciler) Enqueue(node string) {
	for _, in := range r.config.View.OnNode(node) {
		r.queue.Add(index.Key(in))
	}
}

func (r *Reconciler) onChange(before, after *rikv1alpha1.Instance) {
	if after != nil {
		r.queue.Add(index.Key(after))
		return
	}
	r.mu.Lock()
	n := r.news[before.UID]
	delete(r.news, before.UID)
	r.mu.Unlock()
	if n != nil && n.binding != nil {
		r.config.Scheduler.Acknowledge(before.UID, n.binding.Node, false)
	}
}

// note stores news under the UID and requests a pass. It returns false for an instance that
// does not exist. It stores first and checks second. If the instance is removed in between, the
// removal finds the news and drops it.
func (r *Reconciler) note(uid types.UID, change func(*news)) bool {
	r.mu.Lock()
	n := r.news[uid]
	if n == nil {
		n = &news{}
		r.news[uid] = n
	}
	change(n)
	r.mu.Unlock()
	in := r.config.View.ByUID(uid)
	if in == nil {
		r.mu.Lock()
		delete(r.news, uid)
		r.mu.Unlock()
		return false
	}
	r.queue.Add(index.Key(in))
	return true
}

// Bind handles a proposal.
func (r *Reconciler) Bind(uid types.UID, b Binding) {
	known := r.note(uid, func(n *news) { n.binding, n.unplaced = &b, nil })
	if !known {
		r.config.Scheduler.Acknowledge(uid, b.Node, false)
	}
}

// Explain handles the reason why an instance is not placed.
func (r *Reconciler) Explain(uid types.UID, u Unplaced) {
	r.note(uid, func(n *news) { n.unplaced = &u })
}

// Observe handles an observation. It drops an observation with a lower sequence number than the
// latest of the same node. It also drops observations of unknown instances, unless they confirm
// a tombstone.
func (r *Reconciler) Observe(uid types.UID, o Observation) {
	known := r.note(uid, func(n *news) {
		last := n.observation
		if last == nil || last.Node != o.Node || last.Sequence <= o.Sequence {
			n.observation, n.old = &o, false
		}
	})
	if !known && o.Phase == rikv1alpha1.InstanceTerminated && r.config.Tombstones.Has(o.Node, uid) {
		r.confirmed.Add(Tombstone{UID: uid, Node: o.Node})
	}
}

func (r *Reconciler) confirm(ctx context.Context, t Tombstone) (time.Duration, error) {
	return 0, r.config.Tombstones.Confirm(ctx, t.Node, t.UID)
}

// Reset drops proposals of an earlier scheduler session, and marks its observations as old. The
// new session sends all of them again.
func (r *Reconciler) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.news {
		n.binding, n.unplaced, n.old = nil, nil, true
	}
}

// ContactChanged requests a pass over the instances that wait for the scheduler.
func (r *Reconciler) ContactChanged() {
	for _, in := range r.config.View.All() {
		if in.Spec.NodeName == "" && !in.Status.Phase.Ended() {
			r.queue.Add(index.Key(in))
		}
	}
}

// facts collects the input of the next step. again is the time after which the state of the
// connection to the scheduler changes the result. It is 0 if the result does not depend on it.
func (r *Reconciler) facts(in *rikv1alpha1.Instance) (f Facts, again time.Duration) {
	now := r.config.Now()
	f.Now = metav1.NewTime(now)
	if contact := r.config.Contact(); in.Spec.NodeName == "" {
		left := contact.Since.Add(r.config.Settled).Sub(now)
		f.Away, f.Back = left <= 0 && !contact.Connected, left <= 0 && contact.Connected
		if !contact.Connected || in.Status.Reason == ReasonSchedulerUnavailable {
			again = max(left, 0)
		}
	}
	r.mu.Lock()
	if n := r.news[in.UID]; n != nil {
		f.Binding, f.Unplaced = n.binding, n.unplaced
		if !n.old || in.Status.Phase != rikv1alpha1.InstanceUnknown {
			f.Observation = n.observation
		}
	}
	r.mu.Unlock()
	switch {
	case in.Spec.NodeName != "":
		f.Node = r.config.Nodes(in.Spec.NodeName)
	case f.Binding != nil:
		f.Node = r.config.Nodes(f.Binding.Node)
	}
	return f, again
}

func (r *Reconciler) reconcile(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	in := r.config.View.Get(key)
	if in == nil {
		return 0, nil
	}
	facts, again := r.facts(in)
	step := Next(in, facts)
	if step.Refuse {
		r.settle(in.UID, facts.Binding, false)
	}
	var err error
	switch {
	case step.Release:
		err = r.release(ctx, in, step.Tombstone)
	case step.Bind != "":
		err = r.bind(ctx, in, facts.Binding, step)
	case step.Status != nil:
		err = r.status(ctx, in, step.Status)
	}
	if in.Spec.NodeName != "" && facts.Binding != nil && !step.Refuse && err == nil {
		// The scheduler proposed the binding again after it had become durable.
		r.settle(in.UID, facts.Binding, true)
	}
	return again, reconcile.IgnoreStale(err)
}

// settle drops a proposal and acknowledges it to the scheduler, unless a newer one has arrived.
func (r *Reconciler) settle(uid types.UID, b *Binding, durable bool) {
	r.mu.Lock()
	n := r.news[uid]
	current := n != nil && n.binding == b
	if current {
		n.binding = nil
	}
	r.mu.Unlock()
	if current {
		r.config.Scheduler.Acknowledge(uid, b.Node, durable)
	}
}

func (r *Reconciler) bind(ctx context.Context, in *rikv1alpha1.Instance, b *Binding, step Step) error {
	next := *in // the store copies what it changes
	next.Spec.NodeName, next.Status = step.Bind, *step.Status
	stored, err := r.config.Store.Bind(ctx, &next)
	if err != nil {
		return fmt.Errorf("binding instance %s to node %s: %w", index.Key(in), step.Bind, err)
	}
	// In this order only the acknowledgment informs the scheduler. In the other order, the change
	// of the view would also send the bound instance.
	r.settle(in.UID, b, true)
	r.config.View.Put(stored)
	return nil
}

func (r *Reconciler) status(ctx context.Context, in *rikv1alpha1.Instance, s *rikv1alpha1.InstanceStatus) error {
	next := *in // the store copies what it changes
	next.Status = *s
	stored, err := r.config.Store.UpdateStatus(ctx, &next)
	if err != nil {
		return fmt.Errorf("storing the status of instance %s: %w", index.Key(in), err)
	}
	r.config.View.Put(stored)
	r.announce(in, s)
	return nil
}

// announce emits events for the occurrences in a change.
func (r *Reconciler) announce(in *rikv1alpha1.Instance, s *rikv1alpha1.InstanceStatus) {
	for _, h := range occurrences(&in.Status, s) {
		r.config.Events.Eventf(in, nil, corev1.EventTypeWarning, h.reason, h.action, "%s", h.note)
	}
}

func (r *Reconciler) release(ctx context.Context, in *rikv1alpha1.Instance, tombstone bool) error {
	if tombstone {
		t := Tombstone{UID: in.UID, Node: in.Spec.NodeName}
		if err := r.config.Tombstones.Add(ctx, t.Node, t.UID); err != nil {
			return err
		}
		r.config.Scheduler.Tombstone(t)
		r.config.Logger.Info("removing an instance without the confirmation of its node", "instance", index.Key(in), "node", t.Node)
	}
	next := *in // the store copies what it changes
	next.Finalizers = slices.DeleteFunc(slices.Clone(in.Finalizers), func(f string) bool { return f == rikv1alpha1.FinalizerNode })
	stored, err := r.config.Store.Update(ctx, &next)
	if err != nil {
		return fmt.Errorf("removing the finalizer of instance %s: %w", index.Key(in), err)
	}
	if len(next.Finalizers) > 0 {
		r.config.View.Put(stored)
	}
	return nil
}
