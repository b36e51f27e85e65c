package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
	"rik.dev/rik/internal/multicluster/splitter/patch"
	"rik.dev/rik/internal/reconcile"
)

// reconcile makes one pass over a root.
func (c *Controller) reconcile(ctx context.Context, key rootKey) (time.Duration, error) {
	k, filled := c.kindOf(key.GroupResource)
	if k == nil {
		c.forget(key)
		return 0, nil // nothing is changed for a type that is not served
	}
	if !filled {
		return 0, reconcile.ErrAgain
	}
	begin := c.now()
	again, err := c.pass(ctx, k, key)
	c.metrics.pass(c.now().Sub(begin), err != nil)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// Another client has changed the object. Its change will arrive as an event.
		return 0, fmt.Errorf("%w: %w", reconcile.ErrAgain, err)
	case err != nil:
		return 0, fmt.Errorf("dividing %s: %w", key, err)
	}
	return again, nil
}

// forget removes the state of an object that is no longer a root.
func (c *Controller) forget(key rootKey) {
	c.metrics.forget(key)
	c.memory.forget(key)
}

func (c *Controller) pass(ctx context.Context, k *kind, key rootKey) (time.Duration, error) {
	root, leaves := k.family(key.Namespace, key.Name)
	if err := c.retire(ctx, k, key, root, leaves); err != nil {
		return 0, err
	}
	expires, err := c.expire(ctx, k, root)
	if err != nil {
		return 0, err
	}
	if root == nil || root.role != loader.Root {
		c.forget(key)
		return expires, nil
	}
	if root.GetDeletionTimestamp() != nil {
		return 0, nil // The garbage collector of Kubernetes may be deleting the leaves.
	}
	from := source{c, root, leaves}
	w, err := loader.Read(ctx, from, root.Unstructured, k.Type, c.now())
	if err != nil {
		return 0, err
	}
	if err := w.ReadScalers(ctx, from); err != nil {
		return 0, err
	}
	var result splitter.Result
	if len(w.Problems) == 0 {
		result = splitter.Split(w.State)
	}
	p := &pass{Controller: c, k: k, key: key, root: root, state: w, result: result}
	if err := p.run(ctx, leaves); err != nil {
		return 0, err
	}
	return sooner(p.again(), expires), nil
}

// expire deletes a finished object whose time to live has ended. Otherwise it returns how much
// longer the object lives. 0 means without limit. The clusters do not delete the object, because
// syncers do not copy the time to live.
func (c *Controller) expire(ctx context.Context, k *kind, object *entry) (time.Duration, error) {
	if object == nil || object.expires.IsZero() || object.GetDeletionTimestamp() != nil {
		return 0, nil
	}
	if left := object.expires.Sub(c.now()); left > 0 {
		return left, nil
	}
	uid, version := object.GetUID(), object.GetResourceVersion()
	c.config.Logger.Info("deleting a finished object whose time to live is over", "type", k.GroupResource().String(), "object", key.Name(object.GetNamespace(), object.GetName()))
	err := c.dynamic.Resource(k.GVR()).Namespace(object.GetNamespace()).Delete(ctx, object.GetName(),
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("deleting %s after its time to live: %w", object.GetName(), err)
	}
	return 0, nil
}

// sooner returns the shorter of two delays. 0 means no delay is set.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// retire deletes the leaves of a root that no longer exists, or that has target labels of its
// own. A root and its leaves arrive through one watch. If the cache has a leaf but not its root,
// the root was deleted. Orphaned leaves have no controller and stay.
func (c *Controller) retire(ctx context.Context, k *kind, key rootKey, root *entry, leaves []*entry) error {
	var problems []error
	for _, leaf := range leaves {
		name, uid := loader.Owner(leaf, k.Type)
		stays := name == "" || root != nil && root.role == loader.Root && root.GetUID() == uid
		if !stays && leaf.GetDeletionTimestamp() == nil {
			problems = append(problems, c.delete(ctx, k, key.Name, leaf))
		}
	}
	return join(slices.DeleteFunc(problems, func(err error) bool { return err == nil }))
}

// pass is one pass over a root.
type pass struct {
	*Controller

	k      *kind
	key    rootKey
	root   *entry
	state  *loader.RootState
	result splitter.Result
	plan   *plan
}

func (p *pass) run(ctx context.Context, leaves []*entry) error {
	planner := newPlanner(p.state, p.root, leaves)
	if len(p.state.Problems) > 0 {
		// The hints or the Placement are invalid. The leaves stay as they are.
		p.plan = &plan{pending: map[string]bool{}, behind: planner.behind()}
		p.reportProblems()
		return p.writeStatus(ctx)
	}
	var err error
	if p.plan, err = planner.plan(p.result.Changes); err != nil {
		return err
	}
	if err := p.writeProgress(ctx); err != nil {
		return err
	}
	err = p.writeLeaves(ctx)
	p.report()
	p.metrics.root(p.key, p.result.Unplaced, p.plan.paused)
	return errors.Join(err, p.writeStatus(ctx))
}

// again returns when the next pass is needed if nothing happens.
func (p *pass) again() time.Duration {
	var again time.Duration
	if next := p.result.Next; !next.IsZero() {
		again = max(next.Sub(p.now()), time.Millisecond)
	}
	if p.k.written.waits(key.Name(p.key.Namespace, p.key.Name)) && (again == 0 || again > showTimeout) {
		again = showTimeout
	}
	return again
}

// writeProgress writes the progress on the root before any other change.
func (p *pass) writeProgress(ctx context.Context) error {
	note := ""
	if p.result.Progress != (splitter.Progress{}) {
		data, err := json.Marshal(p.result.Progress)
		if err != nil {
			return err
		}
		note = string(data)
	}
	if note == p.root.GetAnnotations()[splitter.ProgressAnnotation] {
		return nil
	}
	value := any(note)
	if note == "" {
		value = nil
	}
	data, err := patch.Body(p.root, map[string]any{"annotations": map[string]any{splitter.ProgressAnnotation: value}}, nil)
	if err != nil {
		return err
	}
	written, err := p.dynamic.Resource(p.k.GVR()).Namespace(p.key.Namespace).
		Patch(ctx, p.key.Name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("noting the progress of %s: %w", p.key.Name, err)
	}
	next, err := newEntry(written, p.k.Type)
	if err != nil {
		return err
	}
	p.root = next
	p.k.written.note(key.Name(p.key.Namespace, p.key.Name), next, false)
	return nil
}
