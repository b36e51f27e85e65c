package workload

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/api/rik/revision"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// nameAttempts bounds how often create tries another name.
const nameAttempts = 8

// apply executes a plan. Lost instances are deleted only if every creation succeeded, because
// one of the new instances may replace them.
func (r *Reconciler) apply(ctx context.Context, w *rikv1alpha1.Workload, p Plan) error {
	var room, lost []Deletion
	for _, d := range p.Delete {
		if d.lost() {
			lost = append(lost, d)
		} else {
			room = append(room, d)
		}
	}
	remove := func(ctx context.Context, d Deletion) error { return r.delete(ctx, w, d) }
	if err := each(ctx, r.config.Writes, room, remove); err != nil {
		return err
	}
	err := each(ctx, r.config.Writes, p.Create, func(ctx context.Context, c Creation) error { return r.create(ctx, w, c) })
	if err != nil {
		r.config.Events.Eventf(w, nil, corev1.EventTypeWarning, "CreateFailed", "Scaling", "%s", err)
		return err
	}
	return each(ctx, r.config.Writes, lost, remove)
}

// enoughErrors is the number of errors that ends a round of writes. The remaining writes would
// most likely fail too, and the back-off then limits the retries.
const enoughErrors = 16

// each calls do for all items of a list, a bounded number at once. An error does not skip other
// items. A store that sometimes fails therefore slows a plan down and does not stop it.
func each[T any](ctx context.Context, limit int, list []T, do func(context.Context, T) error) error {
	var group errgroup.Group
	group.SetLimit(max(limit, 1))
	var failed atomic.Int32
	for _, item := range list {
		if failed.Load() >= enoughErrors {
			break
		}
		group.Go(func() error {
			err := do(ctx, item)
			if err != nil {
				failed.Add(1)
			}
			return err
		})
	}
	return group.Wait()
}

func (r *Reconciler) create(ctx context.Context, w *rikv1alpha1.Workload, c Creation) error {
	rev := r.config.Revisions.Get(types.NamespacedName{Namespace: w.Namespace, Name: c.Revision})
	if rev == nil {
		return fmt.Errorf("creating an instance of %s/%s: revision %q does not exist", w.Namespace, w.Name, c.Revision)
	}
	for attempt := range nameAttempts {
		in := &rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Name: r.name(w, c, attempt)}}
		revision.Stamp(in, rev)
		in.Spec.Replaces = string(c.Replaces)
		stored, err := r.config.Store.Create(ctx, in)
		switch {
		case err == nil:
			r.config.Instances.Put(stored)
			return nil
		case !apierrors.IsAlreadyExists(err):
			return fmt.Errorf("creating an instance of %s/%s: %w", w.Namespace, w.Name, err)
		case c.Replaces == "":
			continue
		}
		var have rikv1alpha1.Instance
		err = r.config.Client.Get(ctx, client.ObjectKeyFromObject(in), &have)
		if err == nil && have.Spec.Replaces == string(c.Replaces) {
			// Created before a restart, or by a pass whose result is no longer in the view.
			r.config.Instances.Put(&have)
			return nil
		}
	}
	return fmt.Errorf("creating an instance of %s/%s: no free name in %d attempts", w.Namespace, w.Name, nameAttempts)
}

// name returns a random name for a new instance. The name of a replacement is derived from the
// replaced instance, so that only one replacement is created.
func (r *Reconciler) name(w *rikv1alpha1.Workload, c Creation, attempt int) string {
	if c.Replaces == "" {
		return w.Name + "-" + r.config.Suffix()
	}
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%d", c.Replaces, attempt)
	text := strconv.FormatUint(uint64(h.Sum32()), 36)
	return w.Name + "-r" + text[max(len(text)-5, 0):]
}

func (r *Reconciler) delete(ctx context.Context, w *rikv1alpha1.Workload, d Deletion) error {
	in := d.Instance
	r.mu.Lock()
	r.doomed[in.UID] = struct{}{}
	r.mu.Unlock()
	err := r.config.Store.Delete(ctx, in.Namespace, in.Name, in.UID, nil)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// The instance was deleted, or is another object of the same name. The watch will report
		// it.
		return nil
	case err != nil:
		r.mu.Lock()
		delete(r.doomed, in.UID)
		r.mu.Unlock()
		return fmt.Errorf("deleting instance %s/%s: %w", in.Namespace, in.Name, err)
	}
	if now := r.config.Instances.ByUID(in.UID); now == nil || now.DeletionTimestamp != nil {
		// The watch was faster than the response.
		r.mu.Lock()
		delete(r.doomed, in.UID)
		r.mu.Unlock()
	}
	if w != nil && d.lost() {
		r.config.Logger.Info("replacing an instance", "instance", in.Name, "namespace", in.Namespace,
			"node", in.Spec.NodeName, "reason", d.Reason)
		r.config.Events.Eventf(w, in, corev1.EventTypeNormal, "Replaced", "Replacing",
			"instance %s on node %s: %s", in.Name, in.Spec.NodeName, d.Reason)
	}
	return nil
}
