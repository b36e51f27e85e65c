package controller

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
	"rik.dev/rik/internal/multicluster/splitter/patch"
	"rik.dev/rik/internal/reconcile"
)

// writeLeaves executes a plan. A failed write does not stop the others. Any subset of the writes
// is safe, and those that were made are reported.
func (p *pass) writeLeaves(ctx context.Context) error {
	var problems []error
	failed := map[string]bool{}
	for _, s := range p.plan.steps {
		err := p.write(ctx, s)
		if err != nil && !apierrors.IsConflict(err) && !errors.Is(err, reconcile.ErrAgain) && ctx.Err() == nil {
			p.reportFailure(s.cluster, err)
		}
		if err != nil {
			failed[s.cluster] = true
			problems = append(problems, fmt.Errorf("writing the leaf for %s: %w", s.cluster, err))
		}
	}
	p.reportMoves(failed)
	return join(problems)
}

// join joins errors. If all are conflicts, it keeps that kind, so that callers can recognize it.
func join(problems []error) error {
	for _, err := range problems {
		if !apierrors.IsConflict(err) && !errors.Is(err, reconcile.ErrAgain) {
			return errors.Join(problems...)
		}
	}
	if len(problems) > 0 {
		return problems[0]
	}
	return nil
}

func (p *pass) write(ctx context.Context, s step) error {
	if s.action == splitter.Delete {
		p.metrics.changed(s.action)
		return p.delete(ctx, p.k, p.key.Name, s.have)
	}
	if s.object != nil {
		if err := p.followers.Precede(ctx, p.k.Type, s.object, s.cluster); err != nil {
			return err
		}
	}
	written, err := p.put(ctx, s)
	if err != nil {
		return err
	}
	action := s.action
	if action == "" {
		action = "correct"
	}
	p.metrics.changed(action)
	r, err := newEntry(written, p.k.Type)
	if err != nil {
		return err
	}
	p.k.written.note(key.Name(p.key.Namespace, p.key.Name), r, false)
	return nil
}

// put creates, replaces or patches a leaf, if it has not changed since it was read.
func (p *pass) put(ctx context.Context, s step) (*unstructured.Unstructured, error) {
	leaves := p.dynamic.Resource(p.k.GVR()).Namespace(p.key.Namespace)
	switch {
	case s.have == nil:
		made, err := leaves.Create(ctx, s.object, metav1.CreateOptions{FieldManager: fieldManager})
		if apierrors.IsAlreadyExists(err) {
			return nil, p.taken(s.object.GetName(), err)
		}
		return made, err
	case s.object != nil:
		return leaves.Update(ctx, s.object, metav1.UpdateOptions{FieldManager: fieldManager})
	}
	data, err := patch.Body(s.have, s.metadata, s.rest)
	if err != nil {
		return nil, err
	}
	return leaves.Patch(ctx, s.have.GetName(), types.MergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager})
}

// errTaken means that another object has the name of a leaf.
var errTaken = errors.New("another object has the name of the leaf: delete or rename it")

// taken returns why a leaf could not be created: the cache is not up to date, or another object
// has the name.
func (p *pass) taken(name string, err error) error {
	other := p.k.get(p.key.Namespace, name)
	if other == nil {
		return fmt.Errorf("%w: %w", reconcile.ErrAgain, err)
	}
	if owner, _ := loader.Owner(other, p.k.Type); owner == p.key.Name {
		return fmt.Errorf("%w: %w", reconcile.ErrAgain, err)
	}
	return fmt.Errorf("%s: %w", name, errTaken)
}

// background is set for every deletion, because the default depends on the type.
var background = metav1.DeletePropagationBackground

// delete deletes a leaf, if it has not changed since it was read. The leaf exists until its
// syncer has confirmed the deletion.
func (c *Controller) delete(ctx context.Context, k *kind, root string, leaf *entry) error {
	uid, version := leaf.GetUID(), leaf.GetResourceVersion()
	err := c.dynamic.Resource(k.GVR()).Namespace(leaf.GetNamespace()).Delete(ctx, leaf.GetName(),
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	k.written.note(key.Name(leaf.GetNamespace(), root), leaf.deleting(metav1.NewTime(c.now())), true)
	return nil
}
