// Package node keeps the Node objects true to what the scheduler reports of
// the nodes' connections, and tells the other reconcilers what that means for
// the instances there.
//
// Reads: Nodes, the view of instances, the scheduler's node reports (in memory;
// no heartbeat is ever written). Writes: Nodes and their status, when a
// condition or a fact changes.
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// recentlySilent is how long a node that has no instances left counts in the
// judgment whether too many are silent at once.
const recentlySilent = 10 * time.Minute

// Config is what a Reconciler works with. All fields are needed.
type Config struct {
	Client    client.Client
	Nodes     *index.Objects[*rikv1alpha1.Node]
	Instances *index.Instances
	Ranges    Ranges
	Events    events.EventRecorder
	Logger    *slog.Logger
	Now       func() time.Time
	// Term of the controller, and Raise, which leaves it for one above the given term: it
	// ends the reconciler's run.
	Term  int64
	Raise func(ctx context.Context, above int64) error
	// Deleted is the record of deleted Nodes.
	Deleted *Deleted
	// NodeTimeout is the time without a scheduler after which nobody hears of nodes.
	NodeTimeout time.Duration
}

// Ranges gives out the ranges of addresses of nodes. It does not block.
type Ranges interface {
	// Of is the range that a node has or should get, or why it has none that
	// can be used.
	Of(n *rikv1alpha1.Node) (podCIDR, problem string)
	// Forget frees what was meant for a node that does not exist.
	Forget(name string)
}

// Reconciler keeps Nodes.
type Reconciler struct {
	config Config
	queue  *reconcile.Queue[string]
	// changed is told of a node whose meaning for its instances changed.
	changed []func(node string)

	mu sync.RWMutex
	// Below is guarded by mu.
	reports  map[string]*Report
	measured map[string]string
	usage    map[types.UID]string
	// live: a session with the scheduler is established and has been told all.
	live    bool
	contact instance.Contact
	// paused is the last judgment that was announced.
	paused bool
}

// New makes a reconciler and subscribes it to the views.
func New(c Config) *Reconciler {
	r := &Reconciler{
		config: c, reports: map[string]*Report{}, measured: map[string]string{}, usage: map[types.UID]string{},
		contact: instance.Contact{Since: c.Now()},
	}
	r.queue = reconcile.New(reconcile.Options{Name: "nodes", Workers: 8, Logger: c.Logger}, r.reconcile)
	c.Nodes.Subscribe(r.onNode)
	c.Instances.Subscribe(r.onInstance)
	return r
}

// OnChange adds a function that is told of each node whose meaning for its
// instances changed. It must not block and is added before Run.
func (r *Reconciler) OnChange(f func(node string)) { r.changed = append(r.changed, f) }

// Enqueue asks for a pass over a node.
func (r *Reconciler) Enqueue(name string) { r.queue.Add(name) }

// Run works until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error { return r.queue.Run(ctx) }

func (r *Reconciler) onNode(before, after *rikv1alpha1.Node) {
	n := after
	if n == nil {
		n = before
		// What was heard of it must not bring it back: a node that was deleted
		// joins anew, or not at all.
		r.mu.Lock()
		delete(r.reports, n.Name)
		delete(r.measured, n.Name)
		r.mu.Unlock()
	}
	r.queue.Add(n.Name)
	r.notify(n.Name)
}

// onInstance looks at a node again that waits for its instances to go.
func (r *Reconciler) onInstance(before, after *rikv1alpha1.Instance) {
	if after != nil && after.DeletionTimestamp == nil && !after.Status.Phase.Ended() || before == nil {
		return
	}
	if n := r.config.Nodes.Get(types.NamespacedName{Name: before.Spec.NodeName}); n != nil && n.DeletionTimestamp != nil {
		r.queue.Add(n.Name)
	}
	if after == nil {
		r.mu.Lock()
		delete(r.usage, before.UID)
		r.mu.Unlock()
	}
}

func (r *Reconciler) notify(node string) {
	for _, f := range r.changed {
		f(node)
	}
}

// SessionBegan forgets what an earlier scheduler session said: silence counts
// only when the present scheduler says it.
func (r *Reconciler) SessionBegan() { r.session(true) }

// Welcomed notes that there is a scheduler.
func (r *Reconciler) Welcomed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.contact = instance.Contact{Connected: true, Since: r.config.Now()}
}

// SessionEnded keeps what is known but lets nothing be lost until the next session.
// If that does not come, nothing is shown as known any more after NodeTimeout.
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

// Contact is that with the scheduler.
func (r *Reconciler) Contact() instance.Contact {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.contact
}

// unheard says since when there has been no scheduler, once that has been for so
// long that nobody is taken to hear of any node; otherwise the zero time, and after
// how long it will be so if none comes.
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

// Take takes a report. Fields that the scheduler left out because they did not
// change keep their value.
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

// Carries says whether packets of other nodes reach the instances of a node, as far as is known.
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

// Facts is what the instance reconciler needs of a node.
func (r *Reconciler) Facts(name string) instance.NodeFacts {
	n := r.config.Nodes.Get(types.NamespacedName{Name: name})
	if n == nil || n.DeletionTimestamp != nil {
		return instance.NodeFacts{}
	}
	report := r.report(name)
	address := n.Status.Info.InternalAddress
	if report != nil && report.Status != nil {
		// The status of a new node is a second write, which may come after the
		// first binding.
		address = report.Status.Info.InternalAddress
	}
	unheard, _ := r.unheard()
	return instance.NodeFacts{
		Exists: true, Address: address, Unheard: !unheard.IsZero(),
		Silent: report != nil && !report.Connected, LastSeen: report != nil && report.Connected,
	}
}

// Disposition says what becomes of an instance because of its node.
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

// evaluate counts the silent nodes. One that is long silent and has nothing left
// on it is merely not yet deleted and says nothing about the network.
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
		r.notify(name) // time alone brought it
	}
	return again, quiet(err)
}

// quiet leaves a conflict to the next event.
func quiet(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%w: %w", reconcile.ErrAgain, err)
	}
	return err
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
			"the node asked for labels that it may not have or that are malformed: %q", refused)
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

// announce makes an event of a change of readiness.
func (r *Reconciler) announce(before, after *rikv1alpha1.Node) {
	was, is := readiness(before), readiness(after)
	if was == is {
		return
	}
	r.config.Logger.Info("a node's readiness changed", "node", after.Name, "ready", is)
	r.notify(after.Name)
	switch {
	case is == reasonSilent || is == instance.ReasonSchedulerUnavailable:
		r.config.Events.Eventf(after, nil, corev1.EventTypeWarning, is, "Watching", "the node is not heard of")
	case is == rikv1alpha1.NodeConfirmationNeeded: // announceHold says it, and why
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

// free lets a deleted node go when nothing lives on it any more; the workload
// and instance reconcilers see that it is being deleted and free its instances.
func (r *Reconciler) free(ctx context.Context, n *rikv1alpha1.Node) error {
	if !slices.Contains(n.Finalizers, Finalizer) {
		return nil
	}
	held := func(in *rikv1alpha1.Instance) bool { return !in.Status.Phase.Ended() }
	if slices.ContainsFunc(r.config.Instances.OnNode(n.Name), held) {
		return nil
	}
	if err := r.config.Deleted.Add(ctx, UIDs(n)...); err != nil {
		return err // its certificate must stay revoked
	}
	want := n.DeepCopy()
	want.Finalizers = slices.DeleteFunc(want.Finalizers, func(f string) bool { return f == Finalizer })
	if err := r.config.Client.Update(ctx, want); err != nil {
		return fmt.Errorf("letting go of node %q: %w", n.Name, err)
	}
	r.config.Logger.Info("a node was removed", "node", n.Name)
	return nil
}

// announcePause makes one event of each change of the judgment and looks at
// every silent node again, whose condition says it.
func (r *Reconciler) announcePause() {
	paused := r.evaluate()
	r.mu.Lock()
	same := r.paused == paused
	r.paused = paused
	r.mu.Unlock()
	if same {
		return
	}
	r.config.Logger.Warn("replacement of instances on silent nodes", "paused", paused)
	for _, n := range r.config.Nodes.All() {
		report := r.report(n.Name)
		if report == nil || report.Connected {
			continue
		}
		r.queue.Add(n.Name)
		r.notify(n.Name)
		if paused {
			r.config.Events.Eventf(n, nil, corev1.EventTypeWarning, ConditionReplacementPaused, "Watching",
				"too many nodes fell silent at once: their instances are not replaced")
		}
	}
}
