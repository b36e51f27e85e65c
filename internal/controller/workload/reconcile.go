// Package workload starts, replaces and ends the instances of Workloads, and manages their
// revisions and status.
//
// Reads: Workloads, WorkloadRevisions, the view of instances, and the nodes' effect on them.
// Writes: Instances (create, delete), WorkloadRevisions, and Workloads (status; the template on
// a rollback).
//
// The decisions are pure functions: Make (what to create and delete), Status and Expired.
// Reconciler executes them.
package workload

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/api/rik/fence"
	"rik.dev/rik/api/rik/revision"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/instance"
	"rik.dev/rik/internal/controller/node"
	"rik.dev/rik/internal/controller/store"
	"rik.dev/rik/internal/reconcile"
)

const (
	// statusInterval is the minimum time between two status writes of a workload.
	statusInterval = time.Second
	// settleDelay makes one pass handle the changes of many instances.
	settleDelay = 50 * time.Millisecond
	// settleEach is added to the delay for each instance, up to a second. A pass reads all
	// instances, and should not use a large part of a CPU while thousands change.
	settleEach = 25 * time.Microsecond
	settleMost = time.Second
	// stopMargin is added to the time after which a node without a connection has itself stopped
	// an instance with onDisconnect Stop.
	stopMargin = 10 * time.Second
	// maxBackoff bounds the delay after errors.
	maxBackoff = 5 * time.Second
	// defaultGrace is the API's default of the termination grace period.
	defaultGrace = 30 * time.Second
	// reasonDisplaced is the reason of an instance that is preempted.
	reasonDisplaced = "Displaced"
)

// Config configures a Reconciler. All fields are required.
type Config struct {
	// Client writes. It reads without a cache.
	Client    client.Client
	Store     store.Instances
	Workloads *index.Objects[*rikv1alpha1.Workload]
	Revisions *index.Objects[*rikv1alpha1.WorkloadRevision]
	Instances *index.Instances
	// Disposition returns a node's effect on an instance.
	Disposition func(node string, tolerations []rikv1alpha1.Toleration, replaceAfter time.Duration) node.Disposition
	// ReplaceAfter is the time without a message from a node after which its instances are
	// replaced, unless their workload sets another time.
	ReplaceAfter time.Duration
	// Addresses returns the addresses of a workload that serves ports, or says why it has none.
	// It does not block.
	Addresses func(*rikv1alpha1.Workload) (addresses []string, problem string)
	// Fenced says why no instance of a workload may run now. It is empty if they may.
	Fenced func(context.Context, *rikv1alpha1.Workload) (why string, err error)
	// OwnerWaits reports whether the owner of the workload is deleted only after the instances
	// are gone.
	OwnerWaits func(context.Context, *rikv1alpha1.Workload) (bool, error)
	Events     events.EventRecorder
	Logger     *slog.Logger
	Now        func() time.Time
	// Suffix returns the random end of a new instance's name.
	Suffix func() string
	// Workers bounds how many workloads are reconciled at once. Writes bounds the writes in
	// flight for one workload.
	Workers, Writes int
}

// Reconciler reconciles workloads.
type Reconciler struct {
	config Config
	queue  *reconcile.Queue[types.NamespacedName]

	mu sync.Mutex
	// mu guards the fields below. doomed holds the instances whose deletion was stored but is not
	// in the view yet. displaced holds the instances to preempt. orphaned holds the workloads
	// that are deleted without their instances.
	doomed    map[types.UID]struct{}
	displaced map[types.UID]struct{}
	orphaned  map[types.UID]struct{}
	// foreground holds the workloads that are deleted after their instances.
	foreground map[types.UID]struct{}
	written    map[types.NamespacedName]time.Time
}

// New creates a reconciler and subscribes it to the views.
func New(c Config) *Reconciler {
	r := &Reconciler{
		config: c,
		doomed: map[types.UID]struct{}{}, displaced: map[types.UID]struct{}{}, orphaned: map[types.UID]struct{}{},
		foreground: map[types.UID]struct{}{},
		written:    map[types.NamespacedName]time.Time{},
	}
	r.queue = reconcile.New(reconcile.Options{
		Name: "workloads", Workers: c.Workers, Logger: c.Logger, MaxBackoff: maxBackoff,
	}, r.reconcile)
	c.Workloads.Subscribe(r.onWorkload)
	c.Revisions.Subscribe(r.onRevision)
	c.Instances.Subscribe(r.onInstance)
	return r
}

// Run works until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error { return r.queue.Run(ctx) }

// Waiting returns the number of workloads that wait for a pass.
func (r *Reconciler) Waiting() int { return r.queue.Len() }

// Enqueue requests a pass over every workload that has an instance on the node.
func (r *Reconciler) Enqueue(node string) {
	for _, in := range r.config.Instances.OnNode(node) {
		r.queue.AddAfter(index.WorkloadKey(in), settleDelay)
	}
}

// EnqueueWorkload requests a pass over a workload.
func (r *Reconciler) EnqueueWorkload(key types.NamespacedName) {
	r.queue.AddAfter(key, settleDelay)
}

// Displace requests the preemption of an instance for another one.
func (r *Reconciler) Displace(uid, forUID types.UID) {
	r.mu.Lock()
	_, again := r.displaced[uid]
	r.displaced[uid] = struct{}{}
	r.mu.Unlock()
	in := r.config.Instances.ByUID(uid)
	if in == nil {
		r.forget(uid)
		return
	}
	if !again {
		other := r.config.Instances.ByUID(forUID)
		r.config.Logger.Info("preempting an instance", "instance", index.Key(in), "for", forUID)
		r.config.Events.Eventf(in, nil, corev1.EventTypeWarning, "Preempted", "Preempting", "preempted by an instance of a higher priority, %s", winner(in, other))
	}
	r.queue.Add(index.WorkloadKey(in))
}

// winner names the other instance for the users of in's namespace. It does not name an instance
// in another namespace.
func winner(in, other *rikv1alpha1.Instance) string {
	switch {
	case other == nil:
		return "which does not exist any more"
	case other.Namespace != in.Namespace:
		return "in another namespace"
	default:
		return other.Name
	}
}

func (r *Reconciler) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.doomed, uid)
	delete(r.displaced, uid)
}

func (r *Reconciler) onWorkload(before, after *rikv1alpha1.Workload) {
	w := after
	if w == nil {
		w = before
	}
	if after != nil && w.DeletionTimestamp != nil {
		// The garbage collector of Kubernetes, which does not see instances, removes these
		// finalizers. The API server then records the propagation policy in an annotation.
		cascade := w.Annotations[rikv1alpha1.AnnotationCascade]
		r.mu.Lock()
		if hasFinalizer(w, finalizerOrphan) || cascade == rikv1alpha1.CascadeOrphan {
			r.orphaned[w.UID] = struct{}{}
		}
		if hasFinalizer(w, finalizerForeground) || cascade == rikv1alpha1.CascadeForeground {
			r.foreground[w.UID] = struct{}{}
		}
		r.mu.Unlock()
	}
	r.queue.Add(client.ObjectKeyFromObject(w))
}

func (r *Reconciler) onRevision(before, after *rikv1alpha1.WorkloadRevision) {
	rev := after
	if rev == nil {
		rev = before
	}
	if name := rev.Labels[rikv1alpha1.LabelWorkload]; name != "" {
		r.queue.AddAfter(types.NamespacedName{Namespace: rev.Namespace, Name: name}, settleDelay)
	}
}

func (r *Reconciler) onInstance(before, after *rikv1alpha1.Instance) {
	in := after
	if in == nil {
		in = before
	}
	if after == nil || after.DeletionTimestamp != nil {
		r.forget(in.UID)
	}
	key := index.WorkloadKey(in)
	r.queue.AddAfter(key, settle(r.config.Instances.CountOfWorkload(key)))
}

// settle returns how long the change of one of n instances may wait for other changes.
func settle(n int) time.Duration {
	return min(settleDelay+time.Duration(n)*settleEach, settleMost)
}

func (r *Reconciler) reconcile(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	w := r.config.Workloads.Get(key)
	if w == nil || w.DeletionTimestamp != nil {
		return 0, reconcile.IgnoreStale(r.cascade(ctx, key, w))
	}
	if err := r.sweep(ctx, key, w); err != nil {
		return 0, reconcile.IgnoreStale(err)
	}
	w, err := r.holdOn(ctx, w)
	if err != nil {
		return 0, reconcile.IgnoreStale(err)
	}
	if _, ok := w.Annotations[rikv1alpha1.AnnotationRollback]; ok {
		return 0, reconcile.IgnoreStale(r.rollback(ctx, w))
	}
	current, err := r.ensureRevision(ctx, w)
	if err != nil {
		return 0, reconcile.IgnoreStale(err)
	}
	why, err := r.config.Fenced(ctx, w)
	if err != nil {
		return 0, reconcile.IgnoreStale(err)
	}
	s, again := r.situation(w, current.Name)
	s.Fenced = why
	plan := Make(s)
	failure := r.apply(ctx, w, plan)
	if !plan.Empty() {
		s, _ = r.situation(w, current.Name)
		s.Fenced = why
	}
	status, later := Status(w, s, failure)
	addresses, problem := r.config.Addresses(w)
	addressed(&status, addresses, problem, metav1.NewTime(s.Now))
	wait, err := r.writeStatus(ctx, w, status)
	if failure != nil {
		return 0, reconcile.IgnoreStale(failure)
	}
	if err == nil {
		err = r.prune(ctx, w, current.Name)
	}
	return reconcile.Soonest(again, plan.Again, later, wait), reconcile.IgnoreStale(err)
}

// situation collects the input of a plan, and returns the time after which the loss of a node
// changes it.
func (r *Reconciler) situation(w *rikv1alpha1.Workload, current string) (Situation, time.Duration) {
	s := Situation{Spec: &w.Spec, Revision: current, Now: r.config.Now()}
	var again time.Duration
	after := replaceAfter(w, r.config.ReplaceAfter)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, in := range r.config.Instances.OfWorkload(client.ObjectKeyFromObject(w)) {
		if !instance.Belongs(in, w) {
			continue
		}
		m := Member{Instance: in}
		_, doomed := r.doomed[in.UID]
		m.Ending = doomed || in.DeletionTimestamp != nil
		if in.Spec.NodeName != "" {
			disposition := r.config.Disposition(in.Spec.NodeName, w.Spec.Tolerations, after)
			m.Lost, m.Reason = disposition.Lost, disposition.Reason
			again = reconcile.Soonest(again, disposition.Again)
		}
		if _, ok := r.displaced[in.UID]; ok && !m.Lost {
			m.Lost, m.Reason = true, reasonDisplaced
		}
		s.Members = append(s.Members, m)
	}
	return s, again
}

func replaceAfter(w *rikv1alpha1.Workload, fallback time.Duration) time.Duration {
	after := fallback
	if s := w.Spec.ReplaceAfterSeconds; s != nil {
		after = time.Duration(*s) * time.Second
	}
	if _, fenced := revision.Fence(w); fenced || w.Spec.OnDisconnect == rikv1alpha1.DisconnectStop {
		grace := defaultGrace
		if s := w.Spec.TerminationGracePeriodSeconds; s != nil {
			grace = time.Duration(*s) * time.Second
		}
		after += grace + stopMargin
	}
	return after
}

// ensureRevision creates the revision of the current template. If the template returned to an
// older revision, that revision gets the highest number.
func (r *Reconciler) ensureRevision(ctx context.Context, w *rikv1alpha1.Workload) (*rikv1alpha1.WorkloadRevision, error) {
	want := revision.For(w)
	key := client.ObjectKeyFromObject(want)
	known := r.revisions(w)
	var highest int64
	for _, o := range known {
		highest = max(highest, o.Revision)
	}
	have := r.config.Revisions.Get(key)
	if have == nil {
		want.Revision = highest + 1
		err := r.config.Client.Create(ctx, want)
		if apierrors.IsAlreadyExists(err) {
			// The API server created it for an instance, and the view is behind.
			err = r.config.Client.Get(ctx, key, want)
		}
		if err != nil {
			return nil, fmt.Errorf("storing revision %q: %w", key, err)
		}
		r.config.Revisions.Put(want)
		return want, nil
	}
	if have.Revision == highest && highest > 0 {
		return have, nil
	}
	next := have.DeepCopy()
	next.Revision = highest + 1
	if err := r.config.Client.Update(ctx, next); err != nil {
		return nil, fmt.Errorf("setting the number of revision %q: %w", key, err)
	}
	r.config.Revisions.Put(next)
	return next, nil
}

// revisions returns the revisions of exactly this workload.
func (r *Reconciler) revisions(w *rikv1alpha1.Workload) []*rikv1alpha1.WorkloadRevision {
	var out []*rikv1alpha1.WorkloadRevision
	for _, o := range r.config.Revisions.All() {
		if o.Namespace == w.Namespace && o.Labels[rikv1alpha1.LabelWorkload] == w.Name && ownedBy(o, w.UID) {
			out = append(out, o)
		}
	}
	return out
}

// rollback restores an older template, as `rollout undo` requests by annotation.
func (r *Reconciler) rollback(ctx context.Context, w *rikv1alpha1.Workload) error {
	next := w.DeepCopy()
	asked := next.Annotations[rikv1alpha1.AnnotationRollback]
	delete(next.Annotations, rikv1alpha1.AnnotationRollback)
	number, err := strconv.ParseInt(asked, 10, 64)
	target := Target(r.revisions(w), revision.Name(w), number)
	switch owner := metav1.GetControllerOf(w); {
	case owner != nil:
		r.refuseRollback(w, fmt.Sprintf("%s %s controls this workload: change it instead, for example by applying its earlier manifest", owner.Kind, owner.Name))
	case err != nil || target == nil:
		r.refuseRollback(w, fmt.Sprintf("revision %q does not exist", asked))
	default:
		next.Spec.InstanceTemplate = *withoutFence(&target.Template, w)
	}
	if err := r.config.Client.Update(ctx, next); err != nil {
		return fmt.Errorf("rolling back workload %s/%s: %w", w.Namespace, w.Name, err)
	}
	r.config.Workloads.Put(next)
	return nil
}

// withoutFence returns an older template without the fence that came from the workload. The
// workload's current fence is added again later.
func withoutFence(older *rikv1alpha1.InstanceTemplate, w *rikv1alpha1.Workload) *rikv1alpha1.InstanceTemplate {
	out := older.DeepCopy()
	if _, own := fence.After(w.Spec.Annotations); own {
		return out
	}
	delete(out.Annotations, fence.Annotation)
	out.OnDisconnect = w.Spec.OnDisconnect
	return out
}

func (r *Reconciler) refuseRollback(w *rikv1alpha1.Workload, why string) {
	r.config.Events.Eventf(w, nil, corev1.EventTypeWarning, "RollbackRefused", "RollingBack", "%s", why)
}

// prune deletes revisions beyond the history limit.
func (r *Reconciler) prune(ctx context.Context, w *rikv1alpha1.Workload, current string) error {
	limit := DefaultRevisionHistoryLimit
	if l := w.Spec.RevisionHistoryLimit; l != nil {
		limit = int(*l)
	}
	used := map[string]bool{}
	for _, in := range r.config.Instances.OfWorkload(client.ObjectKeyFromObject(w)) {
		used[in.Spec.Revision] = true
	}
	for _, o := range Expired(r.revisions(w), used, current, limit) {
		if err := r.config.Client.Delete(ctx, o.DeepCopy(), client.Preconditions{UID: &o.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting revision %q: %w", o.Name, err)
		}
	}
	return nil
}

// writeStatus stores the status if it changed, at most once a second. Otherwise it returns the
// time until the next attempt.
func (r *Reconciler) writeStatus(ctx context.Context, w *rikv1alpha1.Workload, status rikv1alpha1.WorkloadStatus) (time.Duration, error) {
	if equality.Semantic.DeepEqual(status, w.Status) {
		return 0, nil
	}
	key := client.ObjectKeyFromObject(w)
	now := r.config.Now()
	fence := fenceChange(&w.Status, &status)
	r.mu.Lock()
	left := r.written[key].Add(statusInterval).Sub(now)
	if left <= 0 {
		r.written[key] = now
	}
	r.mu.Unlock()
	if left > 0 {
		return left, nil
	}
	next := w.DeepCopy()
	next.Status = status
	if err := r.config.Client.Status().Update(ctx, next); err != nil {
		return 0, fmt.Errorf("storing the status of workload %s: %w", key, err)
	}
	r.config.Workloads.Put(next)
	if fence != nil {
		r.config.Events.Eventf(w, nil, fence.kind, fence.reason, "Fencing", "%s", fence.note)
	}
	return 0, nil
}

type change struct{ kind, reason, note string }

// fenceChange returns the event for users when a fence closes or opens, or nil.
func fenceChange(before, after *rikv1alpha1.WorkloadStatus) *change {
	now := meta.FindStatusCondition(after.Conditions, ConditionFenced)
	switch was := meta.FindStatusCondition(before.Conditions, ConditionFenced); {
	case was == nil && now != nil:
		return &change{corev1.EventTypeWarning, "Fenced", now.Message}
	case was != nil && now == nil:
		return &change{corev1.EventTypeNormal, "Unfenced", "the kcp answers again; instances are started"}
	}
	return nil
}
