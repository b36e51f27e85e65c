// Package node updates the Node objects from the scheduler's reports about the nodes'
// connections. It also computes what that means for the instances on a node, for the other
// reconcilers.
//
// Reads: Nodes, the view of instances, the scheduler's node reports (in memory; heartbeats are
// never written). Writes: Nodes and their status, when a condition or a fact changes.
package node

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/instance"
	"rik.dev/rik/internal/reconcile"
)

// recentlySilent is how long a lost node without instances counts in the decision whether too
// many nodes are lost at once.
const recentlySilent = 10 * time.Minute

// Config configures a Reconciler. All fields are required.
type Config struct {
	Client    client.Client
	Nodes     *index.Objects[*rikv1alpha1.Node]
	Instances *index.Instances
	Ranges    Ranges
	Events    events.EventRecorder
	Logger    *slog.Logger
	Now       func() time.Time
	// Term is the controller's term. Raise ends it in favor of one above the given term, which
	// also ends the reconciler's run.
	Term  int64
	Raise func(ctx context.Context, above int64) error
	// Deleted is the record of deleted Nodes.
	Deleted *Deleted
	// NodeTimeout is the time without a scheduler after which the state of nodes is shown as
	// Unknown.
	NodeTimeout time.Duration
}

// Ranges allocates the address ranges of nodes. Its methods do not block.
type Ranges interface {
	// Of returns the range that a node has or should get, or says why it has no usable range.
	Of(n *rikv1alpha1.Node) (podCIDR, problem string)
	// Forget frees the range that was reserved for a node that does not exist.
	Forget(name string)
}

// Reconciler reconciles Nodes.
type Reconciler struct {
	config Config
	queue  *reconcile.Queue[string]
	// changed holds functions that are called when a change of a node concerns its instances.
	changed []func(node string)

	mu sync.RWMutex
	// mu guards the fields below.
	reports map[string]*Report
	// live means that there is a session with the scheduler.
	live    bool
	contact instance.Contact
	// paused is the last decision that was announced.
	paused bool
}

// New creates a reconciler and subscribes it to the views.
func New(c Config) *Reconciler {
	r := &Reconciler{
		config: c, reports: map[string]*Report{}, contact: instance.Contact{Since: c.Now()},
	}
	r.queue = reconcile.New(reconcile.Options{Name: "nodes", Workers: 8, Logger: c.Logger}, r.reconcile)
	c.Nodes.Subscribe(r.onNode)
	c.Instances.Subscribe(r.onInstance)
	return r
}

// OnChange adds a function that is called for each node whose change concerns its instances.
// The function must not block. Call OnChange before Run.
func (r *Reconciler) OnChange(f func(node string)) { r.changed = append(r.changed, f) }

// Enqueue requests a pass over a node.
func (r *Reconciler) Enqueue(name string) { r.queue.Add(name) }

// Run works until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error { return r.queue.Run(ctx) }

func (r *Reconciler) onNode(before, after *rikv1alpha1.Node) {
	n := after
	if n == nil {
		n = before
		// Earlier reports must not create the deleted node again. It can only join again.
		r.mu.Lock()
		delete(r.reports, n.Name)
		r.mu.Unlock()
	}
	r.queue.Add(n.Name)
	r.notify(n.Name)
}

// onInstance enqueues a deleted node that waits until its instances are gone.
func (r *Reconciler) onInstance(before, after *rikv1alpha1.Instance) {
	if after != nil && after.DeletionTimestamp == nil && !after.Status.Phase.Ended() || before == nil {
		return
	}
	if n := r.config.Nodes.Get(types.NamespacedName{Name: before.Spec.NodeName}); n != nil && n.DeletionTimestamp != nil {
		r.queue.Add(n.Name)
	}
}

func (r *Reconciler) notify(node string) {
	for _, f := range r.changed {
		f(node)
	}
}

// SessionBegan drops the reports of an earlier scheduler session. A node counts as lost only if
// the current scheduler reports it.
func (r *Reconciler) SessionBegan() { r.session(true) }

// Welcomed records that there is a scheduler.
func (r *Reconciler) Welcomed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.contact = instance.Contact{Connected: true, Since: r.config.Now()}
}

// SessionEnded keeps the reports, and no instance counts as lost until the next session. If no
// session begins within NodeTimeout, nodes are shown as Unknown.
func (r *Reconciler) SessionEnded() {
	r.session(false)
	r.mu.Lock()
	ended := r.contact.Connected
	if ended {
		r.contact = instance.Contact{Since: r.config.Now()}
	}
	r.mu.Unlock()
	if !ended {
		return
	}
	for _, n := range r.config.Nodes.All() {
		r.queue.Add(n.Name)
	}
}

// Contact returns the state of the connection to the scheduler.
func (r *Reconciler) Contact() instance.Contact {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.contact
}

// unheard returns since when there has been no scheduler, once NodeTimeout has passed. Before
// that it returns the zero time, and the time that is left until NodeTimeout.
func (r *Reconciler) unheard() (since time.Time, in time.Duration) {
	contact := r.Contact()
	if contact.Connected {
		return time.Time{}, 0
	}
	if left := contact.Since.Add(r.config.NodeTimeout).Sub(r.config.Now()); left > 0 {
		return time.Time{}, left
	}
	return contact.Since, 0
}

func (r *Reconciler) session(live bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = live
	if live {
		r.reports = map[string]*Report{}
	}
}

// Take stores a report. Fields that the scheduler omitted because they did not change keep
// their value.
func (r *Reconciler) Take(name string, report Report) {
	r.mu.Lock()
	last := r.reports[name]
	news := last == nil || last.Connected != report.Connected || last.carries() != report.carries()
	if last != nil {
		if report.Status == nil {
			report.Status = last.Status
		}
		if report.Labels == nil {
			report.Labels = last.Labels
		}
		if report.Taints == nil {
			report.Taints = last.Taints
		}
	}
	r.reports[name] = &report
	r.mu.Unlock()
	r.queue.Add(name)
	if news {
		r.notify(name)
	}
}

// Carries reports whether packets of other nodes reach the instances of a node. Without a
// report it returns true.
func (r *Reconciler) Carries(name string) bool {
	report := r.report(name)
	return report == nil || report.carries()
}

func (r *Report) carries() bool { return !r.NoNetwork && r.Troubles[nodestate.TroubleNetwork] == "" }

func (r *Reconciler) report(name string) *Report {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.reports[name]
}

// Facts returns the state of a node that the instance reconciler needs.
func (r *Reconciler) Facts(name string) instance.NodeFacts {
	n := r.config.Nodes.Get(types.NamespacedName{Name: name})
	if n == nil || n.DeletionTimestamp != nil {
		return instance.NodeFacts{}
	}
	report := r.report(name)
	address := n.Status.Info.InternalAddress
	if report != nil && report.Status != nil {
		// The status of a new node is written in a second write, which may come after the first
		// binding.
		address = report.Status.Info.InternalAddress
	}
	unheard, _ := r.unheard()
	return instance.NodeFacts{
		Exists: true, Address: address, Unheard: !unheard.IsZero(),
		Silent: report != nil && !report.Connected, LastSeen: report != nil && report.Connected,
	}
}

// Disposition returns what happens to an instance because of its node.
func (r *Reconciler) Disposition(name string, tolerations []rikv1alpha1.Toleration, replaceAfter time.Duration) Disposition {
	r.mu.RLock()
	report := r.reports[name]
	silent := r.live && report != nil && !report.Connected
	r.mu.RUnlock()
	return dispositionOf(situation{
		node: r.config.Nodes.Get(types.NamespacedName{Name: name}), silent: silent,
		paused: silent && r.evaluate(), tolerations: tolerations, replaceAfter: replaceAfter, now: r.config.Now(),
	})
}

// evaluate decides whether replacement is paused. A node that has been lost for long and has no
// instances left is only waiting for its deletion, and shows nothing about the network.
func (r *Reconciler) evaluate() bool {
	silent, all := 0, 0
	for _, n := range r.config.Nodes.All() {
		if n.DeletionTimestamp != nil {
			continue
		}
		all++
		if report := r.report(n.Name); report != nil && !report.Connected && r.counts(n) {
			silent++
		}
	}
	return Paused(silent, all)
}

func (r *Reconciler) counts(n *rikv1alpha1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == rikv1alpha1.NodeReady && c.Reason == reasonSilent &&
			r.config.Now().Sub(c.LastTransitionTime.Time) > recentlySilent {
			return slices.ContainsFunc(r.config.Instances.OnNode(n.Name), live)
		}
	}
	return true
}

func live(in *rikv1alpha1.Instance) bool {
	return in.DeletionTimestamp == nil && !in.Status.Phase.Ended()
}

func (r *Reconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	n := r.config.Nodes.Get(types.NamespacedName{Name: name})
	report := r.report(name)
	unheard, again := r.unheard()
	var err error
	switch {
	case n == nil && report != nil && report.Connected && report.Status != nil:
		err = r.create(ctx, name, report)
	case n == nil:
		r.config.Ranges.Forget(name)
		return 0, nil
	case n.DeletionTimestamp != nil:
		err = r.free(ctx, n)
	default:
		err = r.update(ctx, n, report)
	}
	r.announcePause()
	if !unheard.IsZero() {
		r.notify(name) // no event: the time passed
	}
	return again, reconcile.IgnoreStale(err)
}

func (r *Reconciler) create(ctx context.Context, name string, report *Report) error {
	n := Fresh(name, report)
	if report.Hold != nil && report.Hold.Certificate != "" {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, rikv1alpha1.AnnotationUnconfirmedCertificate, report.Hold.Certificate)
	}
	n.Spec.PodCIDR, _ = r.config.Ranges.Of(n)
	if err := r.config.Client.Create(ctx, n); err != nil {
		return fmt.Errorf("creating node %q: %w", name, err)
	}
	r.config.Logger.Info("a node joined", "node", name)
	r.config.Nodes.Put(n)
	if _, refused := AskedLabels(report.Labels); len(refused) > 0 {
		r.config.Events.Eventf(n, nil, corev1.EventTypeWarning, "LabelsRefused", "Joining",
			"the node requested labels that are malformed or not allowed: %q", refused)
	}
	return r.update(ctx, n, report)
}

func (r *Reconciler) update(ctx context.Context, n *rikv1alpha1.Node, report *Report) error {
	want := Shape(n, report)
	podCIDR, problem := r.config.Ranges.Of(n)
	want.Spec.PodCIDR = podCIDR
	if !sameSpec(n, want) {
		if err := r.config.Client.Update(ctx, want); err != nil {
			return fmt.Errorf("updating node %q: %w", n.Name, err)
		}
		r.config.Nodes.Put(want)
		n = want
	}
	now := metav1.NewTime(r.config.Now())
	unheard, _ := r.unheard()
	status := Status(n, report, r.evaluate(), unheard, now)
	networked(&status, problem, now)
	if err := r.settle(ctx, n, report); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(status, n.Status) {
		return nil
	}
	want = n.DeepCopy()
	want.Status = status
	if err := r.config.Client.Status().Update(ctx, want); err != nil {
		return fmt.Errorf("storing the status of node %q: %w", n.Name, err)
	}
	r.config.Nodes.Put(want)
	r.announce(n, want)
	r.announceHold(n, want)
	return nil
}

// announce emits an event for a change of readiness.
func (r *Reconciler) announce(before, after *rikv1alpha1.Node) {
	was, is := readiness(before), readiness(after)
	if was == is {
		return
	}
	r.config.Logger.Info("the readiness of a node changed", "node", after.Name, "ready", is)
	r.notify(after.Name)
	switch {
	case is == reasonSilent || is == instance.ReasonSchedulerUnavailable:
		r.config.Events.Eventf(after, nil, corev1.EventTypeWarning, is, "Watching", "the controller does not receive reports of the node")
	case is == rikv1alpha1.NodeConfirmationNeeded: // announceHold reports it with the reason
	case was != "":
		r.config.Events.Eventf(after, nil, corev1.EventTypeNormal, is, "Watching", "the node's readiness changed from %s to %s", was, is)
	}
}

func readiness(n *rikv1alpha1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == rikv1alpha1.NodeReady {
			return c.Reason
		}
	}
	return ""
}

// free removes the finalizer of a deleted node when no instance is left on it. The workload and
// instance reconcilers see the deletion and free its instances.
func (r *Reconciler) free(ctx context.Context, n *rikv1alpha1.Node) error {
	if !slices.Contains(n.Finalizers, Finalizer) {
		return nil
	}
	held := func(in *rikv1alpha1.Instance) bool { return !in.Status.Phase.Ended() }
	if slices.ContainsFunc(r.config.Instances.OnNode(n.Name), held) {
		return nil
	}
	if err := r.config.Deleted.Add(ctx, UIDs(n)...); err != nil {
		return err // the certificate must stay revoked
	}
	want := n.DeepCopy()
	want.Finalizers = slices.DeleteFunc(want.Finalizers, func(f string) bool { return f == Finalizer })
	if err := r.config.Client.Update(ctx, want); err != nil {
		return fmt.Errorf("removing the finalizer of node %q: %w", n.Name, err)
	}
	r.config.Logger.Info("a node was removed", "node", n.Name)
	return nil
}

// announcePause emits one event for each change of the decision. It enqueues every lost node,
// because the node's condition shows the decision.
func (r *Reconciler) announcePause() {
	paused := r.evaluate()
	r.mu.Lock()
	same := r.paused == paused
	r.paused = paused
	r.mu.Unlock()
	if same {
		return
	}
	r.config.Logger.Warn("replacing instances of nodes that do not report", "paused", paused)
	for _, n := range r.config.Nodes.All() {
		report := r.report(n.Name)
		if report == nil || report.Connected {
			continue
		}
		r.queue.Add(n.Name)
		r.notify(n.Name)
		if paused {
			r.config.Events.Eventf(n, nil, corev1.EventTypeWarning, ConditionReplacementPaused, "Watching",
				"too many nodes stopped reporting at the same time; their instances are not replaced")
		}
	}
}
