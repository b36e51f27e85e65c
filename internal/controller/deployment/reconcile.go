// Package deployment runs the Deployments of apps/v1 as Workloads of the same names. It creates
// the Workload, updates it, and reports its state with the conditions of Kubernetes' own
// controller. The Workload handles instances, rollouts and revisions. The garbage collector
// deletes the Workload, by its owner reference.
//
// Reads: Deployments, Workloads. Writes: Workloads (create, update), Deployments (status).
//
// The decisions are pure functions: Decide (what to do about the Workload) and Status.
// Reconciler executes them.
package deployment

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	translation "rik.dev/rik/api/rik/deployment"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/reconcile"
)

// maxBackoff bounds the delay after errors.
const maxBackoff = 5 * time.Second

// Config configures a Reconciler. All fields are required.
type Config struct {
	// Client writes. It reads without a cache.
	Client      client.Client
	Deployments *index.Objects[*appsv1.Deployment]
	Workloads   *index.Objects[*rikv1alpha1.Workload]
	Events      events.EventRecorder
	Logger      *slog.Logger
	Now         func() time.Time
	// Workers bounds how many deployments are reconciled at once.
	Workers int
}

// Reconciler reconciles a Workload for every Deployment.
type Reconciler struct {
	config Config
	queue  *reconcile.Queue[types.NamespacedName]
}

// New creates a reconciler and subscribes it to the views.
func New(c Config) *Reconciler {
	r := &Reconciler{config: c}
	r.queue = reconcile.New(reconcile.Options{
		Name: "deployments", Workers: c.Workers, Logger: c.Logger, MaxBackoff: maxBackoff,
	}, r.reconcile)
	c.Deployments.Subscribe(func(before, after *appsv1.Deployment) {
		if after != nil {
			r.queue.Add(client.ObjectKeyFromObject(after))
		}
	})
	c.Workloads.Subscribe(func(before, after *rikv1alpha1.Workload) {
		if after == nil {
			after = before
		}
		if key := client.ObjectKeyFromObject(after); c.Deployments.Get(key) != nil {
			r.queue.Add(key)
		}
	})
	return r
}

// Run works until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error { return r.queue.Run(ctx) }

func (r *Reconciler) reconcile(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	d := r.config.Deployments.Get(key)
	if d == nil || d.DeletionTimestamp != nil {
		return 0, nil
	}
	action := Decide(d, r.config.Workloads.Get(key))
	failure := r.act(ctx, action)
	if p := refusal(failure); p != nil {
		action.Problem = p
	} else if failure != nil {
		return 0, quiet(failure)
	}
	w := r.config.Workloads.Get(key)
	if w != nil && !metav1.IsControlledBy(w, d) {
		w = nil
	}
	// The next event shows the result of a write that was just made.
	settled := action.Create == nil && action.Update == nil
	status := Status(d, w, settled, action.Problem, metav1.NewTime(r.config.Now()))
	if err := r.writeStatus(ctx, d, status); err != nil {
		return 0, quiet(err)
	}
	reported := d.DeepCopy()
	reported.Status = status
	return Overdue(reported, action.Problem, r.config.Now()), quiet(failure)
}

// Waits reports whether the Deployment that owns a Workload is being deleted in the foreground.
// Then the Workload must wait for its instances. The garbage collector, which does not see
// instances, does not request that when it deletes the Workload.
func (r *Reconciler) Waits(ctx context.Context, w *rikv1alpha1.Workload) (bool, error) {
	owner := metav1.GetControllerOf(w)
	if owner == nil || owner.Kind != translation.Kind || owner.APIVersion != appsv1.SchemeGroupVersion.String() {
		return false, nil
	}
	// The view may not show the deletion yet.
	var d appsv1.Deployment
	err := r.config.Client.Get(ctx, types.NamespacedName{Namespace: w.Namespace, Name: owner.Name}, &d)
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return d.UID == owner.UID && d.DeletionTimestamp != nil && slices.Contains(d.Finalizers, metav1.FinalizerDeleteDependents), nil
}

// act executes an action.
func (r *Reconciler) act(ctx context.Context, a Action) error {
	switch {
	case a.Create != nil:
		err := r.config.Client.Create(ctx, a.Create)
		if apierrors.IsAlreadyExists(err) {
			// The view is behind: read the existing Workload.
			var live rikv1alpha1.Workload
			if err := r.config.Client.Get(ctx, client.ObjectKeyFromObject(a.Create), &live); err != nil {
				return err
			}
			r.config.Workloads.Put(&live)
			return fmt.Errorf("%w: workload %s/%s already exists", reconcile.ErrAgain, live.Namespace, live.Name)
		}
		if err != nil {
			return fmt.Errorf("creating workload %s/%s: %w", a.Create.Namespace, a.Create.Name, err)
		}
		r.config.Workloads.Put(a.Create)
	case a.Update != nil:
		if err := r.config.Client.Update(ctx, a.Update); err != nil {
			return fmt.Errorf("updating workload %s/%s: %w", a.Update.Namespace, a.Update.Name, err)
		}
		r.config.Workloads.Put(a.Update)
	}
	return nil
}

// refusal returns the API server's reason for refusing a Workload, or nil for every other
// error.
func refusal(err error) *Problem {
	switch {
	case err == nil, apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		return &Problem{ReasonRefused, err.Error()}
	}
	return nil
}

// quiet also ignores an error for an object that will be deleted with its namespace.
func quiet(err error) error {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return reconcile.IgnoreStale(err)
}

// writeStatus stores the status if it changed, and emits an event for a new problem.
func (r *Reconciler) writeStatus(ctx context.Context, d *appsv1.Deployment, status appsv1.DeploymentStatus) error {
	if equality.Semantic.DeepEqual(status, d.Status) {
		return nil
	}
	next := d.DeepCopy()
	next.Status = status
	if err := r.config.Client.Status().Update(ctx, next); err != nil {
		return fmt.Errorf("storing the status of deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	r.config.Deployments.Put(next)
	if was, is := failure(d.Status), failure(status); is != "" && was != is {
		r.config.Events.Eventf(next, nil, corev1.EventTypeWarning, "DeploymentNotRun", "Deploying", "%s", is)
	}
	return nil
}

func failure(s appsv1.DeploymentStatus) string {
	for _, c := range s.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}
