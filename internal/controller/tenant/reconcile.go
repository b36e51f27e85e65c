// Package tenant creates a namespace for every Tenant, and the permissions of its users in it.
//
// Reads: Tenants; the namespaces, roles and role bindings with their label.
// Writes: the same namespaces, roles and role bindings, and the status of Tenants.
package tenant

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/reconcile"
)

const (
	// Finalizer keeps a Tenant until its namespace is gone.
	Finalizer = "rik.dev/tenant"
	// ConditionReady is True when a tenant's users can use it.
	ConditionReady = "Ready"
	// countDelay bounds how often the number of instances is written.
	countDelay = time.Second
)

var errForeign = errors.New("a namespace of this name exists, and it does not belong to the tenant")

// Config configures a Reconciler. All fields are required.
type Config struct {
	// Client reads without a cache, because tenants are few and change rarely.
	Client    client.Client
	Tenants   *index.Objects[*rikv1alpha1.Tenant]
	Instances *index.Instances
	Events    events.EventRecorder
	Logger    *slog.Logger
	Now       func() time.Time
}

// Reconciler reconciles tenants.
type Reconciler struct {
	config Config
	queue  *reconcile.Queue[string]
}

// New creates a reconciler and subscribes it to the views.
func New(c Config) *Reconciler {
	r := &Reconciler{config: c}
	r.queue = reconcile.New(reconcile.Options{Name: "tenants", Workers: 2, Logger: c.Logger}, r.reconcile)
	c.Tenants.Subscribe(func(before, after *rikv1alpha1.Tenant) {
		if after != nil {
			r.queue.Add(after.Name)
		}
	})
	c.Instances.Subscribe(func(before, after *rikv1alpha1.Instance) {
		if before == nil {
			r.counted(after.Namespace)
		} else if after == nil {
			r.counted(before.Namespace)
		}
	})
	return r
}

func (r *Reconciler) counted(namespace string) {
	if r.config.Tenants.Get(types.NamespacedName{Name: namespace}) != nil {
		r.queue.AddAfter(namespace, countDelay)
	}
}

// Enqueue requests a pass over a tenant after one of its objects changed.
func (r *Reconciler) Enqueue(name string) { r.queue.Add(name) }

// Run works until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error { return r.queue.Run(ctx) }

func (r *Reconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	t := r.config.Tenants.Get(types.NamespacedName{Name: name})
	if t == nil {
		return 0, nil
	}
	if t.DeletionTimestamp != nil {
		return 0, reconcile.IgnoreStale(r.remove(ctx, t))
	}
	t, err := r.holdOn(ctx, t)
	if err != nil {
		return 0, reconcile.IgnoreStale(err)
	}
	problem := r.ensure(ctx, t)
	if err := r.status(ctx, t, problem); err != nil {
		return 0, reconcile.IgnoreStale(err)
	}
	if errors.Is(problem, errForeign) {
		// The controller cannot change this. An event of the namespace or a later pass will.
		return time.Minute, nil
	}
	return 0, reconcile.IgnoreStale(problem)
}

func (r *Reconciler) holdOn(ctx context.Context, t *rikv1alpha1.Tenant) (*rikv1alpha1.Tenant, error) {
	if slices.Contains(t.Finalizers, Finalizer) {
		return t, nil
	}
	next := t.DeepCopy()
	next.Finalizers = append(next.Finalizers, Finalizer)
	if err := r.config.Client.Update(ctx, next); err != nil {
		return nil, fmt.Errorf("adding the finalizer to tenant %q: %w", t.Name, err)
	}
	r.config.Tenants.Put(next)
	return next, nil
}

// ensure creates missing objects and corrects changed ones.
func (r *Reconciler) ensure(ctx context.Context, t *rikv1alpha1.Tenant) error {
	var have corev1.Namespace
	err := r.config.Client.Get(ctx, types.NamespacedName{Name: t.Name}, &have)
	if apierrors.IsNotFound(err) {
		have = *Namespace(t)
		err = r.config.Client.Create(ctx, &have)
	}
	switch {
	case err != nil:
		return fmt.Errorf("creating the namespace of tenant %q: %w", t.Name, err)
	case have.Labels[rikv1alpha1.LabelTenant] != t.Name:
		return errForeign
	case have.DeletionTimestamp != nil:
		return fmt.Errorf("the namespace of tenant %q is being deleted", t.Name)
	}
	wanted := map[string]bool{}
	for i := range t.Spec.Users {
		role, binding := Role(t, &t.Spec.Users[i]), Binding(t, &t.Spec.Users[i])
		wanted[role.Name] = true
		if err := r.ensureRole(ctx, role); err != nil {
			return err
		}
		if err := r.ensureBinding(ctx, binding); err != nil {
			return err
		}
	}
	return r.dropOthers(ctx, t, wanted)
}

func (r *Reconciler) ensureRole(ctx context.Context, want *rbacv1.Role) error {
	var have rbacv1.Role
	err := r.config.Client.Get(ctx, client.ObjectKeyFromObject(want), &have)
	switch {
	case apierrors.IsNotFound(err):
		err = r.config.Client.Create(ctx, want)
	case err == nil && !equality.Semantic.DeepEqual(have.Rules, want.Rules):
		have.Rules = want.Rules
		err = r.config.Client.Update(ctx, &have)
	}
	if err != nil {
		return fmt.Errorf("saving role %s/%s: %w", want.Namespace, want.Name, err)
	}
	return nil
}

func (r *Reconciler) ensureBinding(ctx context.Context, want *rbacv1.RoleBinding) error {
	var have rbacv1.RoleBinding
	err := r.config.Client.Get(ctx, client.ObjectKeyFromObject(want), &have)
	switch {
	case apierrors.IsNotFound(err):
		err = r.config.Client.Create(ctx, want)
	case err == nil && !equality.Semantic.DeepEqual(have.Subjects, want.Subjects):
		have.Subjects = want.Subjects
		err = r.config.Client.Update(ctx, &have)
	}
	if err != nil {
		return fmt.Errorf("saving role binding %s/%s: %w", want.Namespace, want.Name, err)
	}
	return nil
}

// dropOthers removes the permissions of users who are no longer in the Tenant.
func (r *Reconciler) dropOthers(ctx context.Context, t *rikv1alpha1.Tenant, wanted map[string]bool) error {
	mine := []client.ListOption{client.InNamespace(t.Name), client.MatchingLabels{rikv1alpha1.LabelTenant: t.Name}}
	var bindings rbacv1.RoleBindingList
	var roles rbacv1.RoleList
	if err := errors.Join(r.config.Client.List(ctx, &bindings, mine...), r.config.Client.List(ctx, &roles, mine...)); err != nil {
		return fmt.Errorf("listing the roles of tenant %q: %w", t.Name, err)
	}
	var problems []error
	for i := range bindings.Items {
		if b := &bindings.Items[i]; !wanted[b.Name] {
			problems = append(problems, client.IgnoreNotFound(r.config.Client.Delete(ctx, b)))
		}
	}
	for i := range roles.Items {
		if o := &roles.Items[i]; !wanted[o.Name] {
			problems = append(problems, client.IgnoreNotFound(r.config.Client.Delete(ctx, o)))
		}
	}
	return errors.Join(problems...)
}

func (r *Reconciler) status(ctx context.Context, t *rikv1alpha1.Tenant, problem error) error {
	status := *t.Status.DeepCopy()
	status.Namespace = t.Name
	status.Instances = int32(r.config.Instances.CountIn(t.Name))
	condition := metav1.Condition{
		Type: ConditionReady, Status: metav1.ConditionTrue, Reason: "Made", Message: "the namespace and the users' rights exist",
		LastTransitionTime: metav1.NewTime(r.config.Now()), ObservedGeneration: t.Generation,
	}
	if problem != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "NotMade", problem.Error()
		if errors.Is(problem, errForeign) {
			condition.Reason, status.Namespace = "NamespaceTaken", ""
		}
	}
	apimeta.SetStatusCondition(&status.Conditions, condition)
	if equality.Semantic.DeepEqual(status, t.Status) {
		return nil
	}
	next := t.DeepCopy()
	next.Status = status
	if err := r.config.Client.Status().Update(ctx, next); err != nil {
		return fmt.Errorf("storing the status of tenant %q: %w", t.Name, err)
	}
	r.config.Tenants.Put(next)
	if problem != nil {
		r.config.Events.Eventf(next, nil, corev1.EventTypeWarning, condition.Reason, "Making", "%s", condition.Message)
	}
	return nil
}

// remove deletes the namespace with all its content, and removes the tenant's finalizer when
// the namespace is gone. A namespace that does not belong to the tenant stays.
func (r *Reconciler) remove(ctx context.Context, t *rikv1alpha1.Tenant) error {
	if !slices.Contains(t.Finalizers, Finalizer) {
		return nil
	}
	var have corev1.Namespace
	err := r.config.Client.Get(ctx, types.NamespacedName{Name: t.Name}, &have)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the namespace of tenant %q: %w", t.Name, err)
	}
	if err == nil && have.Labels[rikv1alpha1.LabelTenant] == t.Name {
		if have.DeletionTimestamp == nil {
			err = r.config.Client.Delete(ctx, &have, client.Preconditions{UID: &have.UID})
		}
		// The deletion of the namespace triggers the next pass.
		return client.IgnoreNotFound(err)
	}
	next := t.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == Finalizer })
	if err := r.config.Client.Update(ctx, next); err != nil {
		return fmt.Errorf("removing the finalizer of tenant %q: %w", t.Name, err)
	}
	return nil
}
