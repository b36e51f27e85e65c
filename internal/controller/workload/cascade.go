package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/instance"
	"rik.dev/rik/internal/controller/node"
)

const (
	finalizerOrphan     = metav1.FinalizerOrphanDependents
	finalizerForeground = metav1.FinalizerDeleteDependents

	// Finalizer is set by the API server.
	Finalizer = rikv1alpha1.FinalizerWorkload

	reasonCascade = "WorkloadDeleted"
)

func hasFinalizer(o client.Object, name string) bool { return slices.Contains(o.GetFinalizers(), name) }

// ownedBy reports whether the Workload with the UID owns the object.
func ownedBy(o client.Object, uid types.UID) bool { return instance.Owner(o) == uid }

// sweep ends the instances and revisions of an earlier workload of the same name.
func (r *Reconciler) sweep(ctx context.Context, key types.NamespacedName, w *rikv1alpha1.Workload) error {
	for _, in := range r.config.Instances.OfWorkload(key) {
		if instance.Belongs(in, w) {
			continue
		}
		if err := r.leave(ctx, in); err != nil {
			return err
		}
	}
	return r.sweepRevisions(ctx, key, w.UID)
}

// cascade ends the instances and revisions of a workload that is being deleted or was deleted,
// or releases them if the deletion orphans. w is nil if the workload was deleted.
func (r *Reconciler) cascade(ctx context.Context, key types.NamespacedName, w *rikv1alpha1.Workload) error {
	if w == nil {
		// The view is synced, but this decision is too serious to rely on a cache.
		var live rikv1alpha1.Workload
		if err := r.config.Client.Get(ctx, key, &live); !apierrors.IsNotFound(err) {
			if err == nil {
				r.config.Workloads.Put(&live)
			}
			return err
		}
		r.mu.Lock()
		delete(r.written, key)
		r.mu.Unlock()
	}
	for _, round := range waitingFirst(r.config.Instances.OfWorkload(key)) {
		if err := each(ctx, r.config.Writes, round, r.leave); err != nil {
			return err
		}
	}
	if err := r.sweepRevisions(ctx, key, ""); err != nil {
		return err
	}
	if w == nil {
		return nil
	}
	return r.letGo(ctx, key, w)
}

// waitingFirst splits instances into those without a node and the others. The first must be
// deleted before the others. Otherwise the room of a stopped instance would go to an instance
// that is about to be deleted too. A large workload would then start most of its waiting
// instances during its deletion.
func waitingFirst(list []*rikv1alpha1.Instance) [2][]*rikv1alpha1.Instance {
	var rounds [2][]*rikv1alpha1.Instance
	for _, in := range list {
		if in.Spec.NodeName == "" {
			rounds[0] = append(rounds[0], in)
		} else {
			rounds[1] = append(rounds[1], in)
		}
	}
	return rounds
}

// leave ends an instance without a workload, or makes it an orphan. An orphan stays until it is
// deleted by name or its node is deleted.
func (r *Reconciler) leave(ctx context.Context, in *rikv1alpha1.Instance) error {
	r.mu.Lock()
	_, keep := r.orphaned[instance.Owner(in)]
	_, doomed := r.doomed[in.UID]
	r.mu.Unlock()
	switch {
	case doomed || in.DeletionTimestamp != nil:
		return nil
	case instance.IsOrphan(in):
		if in.Spec.NodeName == "" || r.config.Disposition(in.Spec.NodeName, nil, r.config.ReplaceAfter).Reason != node.ReasonGone ||
			in.Status.Phase.Ended() {
			return nil
		}
	case keep:
		next := in.DeepCopy()
		free(next)
		stored, err := r.config.Store.Update(ctx, next)
		if err != nil {
			return fmt.Errorf("orphaning instance %s/%s: %w", in.Namespace, in.Name, err)
		}
		r.config.Instances.Put(stored)
		return nil
	}
	return r.delete(ctx, nil, Deletion{in, reasonCascade})
}

// free removes the owner from an object and marks it as an orphan.
func free(o client.Object) {
	o.SetOwnerReferences(slices.DeleteFunc(o.GetOwnerReferences(), func(ref metav1.OwnerReference) bool {
		return ref.Kind == "Workload"
	}))
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[rikv1alpha1.AnnotationOrphaned] = "true"
	o.SetAnnotations(annotations)
}

// sweepRevisions deletes the revisions that no existing workload owns and no instance uses.
func (r *Reconciler) sweepRevisions(ctx context.Context, key types.NamespacedName, alive types.UID) error {
	used := map[string]bool{}
	for _, in := range r.config.Instances.OfWorkload(key) {
		used[in.Spec.Revision] = true
	}
	var problems []error
	for _, o := range r.config.Revisions.All() {
		if o.Namespace != key.Namespace || o.Labels[rikv1alpha1.LabelWorkload] != key.Name ||
			used[o.Name] || alive != "" && ownedBy(o, alive) {
			continue
		}
		err := r.config.Client.Delete(ctx, o.DeepCopy(), client.Preconditions{UID: &o.UID})
		if client.IgnoreNotFound(err) != nil {
			problems = append(problems, fmt.Errorf("deleting revision %q: %w", o.Name, err))
		}
	}
	return errors.Join(problems...)
}

// letGo removes the finalizers: at once, or with the policy Foreground when no instance is
// left.
func (r *Reconciler) letGo(ctx context.Context, key types.NamespacedName, w *rikv1alpha1.Workload) error {
	own := []string{Finalizer, finalizerOrphan, finalizerForeground}
	mine := func(f string) bool { return slices.Contains(own, f) }
	if !slices.ContainsFunc(w.Finalizers, mine) {
		return nil
	}
	if slices.ContainsFunc(r.config.Instances.OfWorkload(key), func(in *rikv1alpha1.Instance) bool { return !instance.IsOrphan(in) }) {
		if wait, err := r.waits(ctx, w); wait || err != nil {
			return err
		}
	}
	next := w.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, mine)
	if err := r.config.Client.Update(ctx, next); err != nil {
		return fmt.Errorf("removing the finalizer of workload %s: %w", key, err)
	}
	return nil
}

// waits reports whether a workload that is being deleted must wait for its instances.
func (r *Reconciler) waits(ctx context.Context, w *rikv1alpha1.Workload) (bool, error) {
	r.mu.Lock()
	_, wait := r.foreground[w.UID]
	r.mu.Unlock()
	if wait {
		return true, nil
	}
	return r.config.OwnerWaits(ctx, w)
}

// holdOn adds the finalizer to a workload that lacks it. Someone removed it, or an earlier
// version stored the workload without it.
func (r *Reconciler) holdOn(ctx context.Context, w *rikv1alpha1.Workload) (*rikv1alpha1.Workload, error) {
	if hasFinalizer(w, Finalizer) {
		return w, nil
	}
	next := w.DeepCopy()
	next.Finalizers = append(next.Finalizers, Finalizer)
	if err := r.config.Client.Update(ctx, next); err != nil {
		return nil, fmt.Errorf("adding the finalizer to workload %s/%s: %w", w.Namespace, w.Name, err)
	}
	r.config.Workloads.Put(next)
	return next, nil
}
