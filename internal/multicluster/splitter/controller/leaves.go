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
	"rik.dev/rik/internal/multicluster/splitter/loader"
	"rik.dev/rik/internal/reconcile"
)

// writeLeaves carries a plan out. One write that fails keeps no other from being made:
// whatever part of them is made is safe, and told.
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

// join keeps the kind of an error that stands alone, by which conflicts are told.
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
		if err := p.precede(ctx, p.k.Type, s.object, s.cluster); err != nil {
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
	p.k.written.note(nameKey(p.key.Namespace, p.key.Name), r, false)
	return nil
}

// put makes, replaces or patches a leaf, only as it was seen.
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
	patch, err := body(s.have, s.metadata, s.rest)
	if err != nil {
		return nil, err
	}
	return leaves.Patch(ctx, s.have.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
}

// errTaken says that something else has the name of a leaf.
var errTaken = errors.New("another object has the name of the leaf: delete or rename it")

// taken says why a leaf could not be made: because the cache is behind, or because the
// name is somebody else's.
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

// background is said with every deletion: the default is up to each type.
var background = metav1.DeletePropagationBackground

// delete deletes a leaf as it was seen. It stays until its syncer has seen it go.
func (c *Controller) delete(ctx context.Context, k *kind, root string, leaf *entry) error {
	uid, version := leaf.GetUID(), leaf.GetResourceVersion()
	err := c.dynamic.Resource(k.GVR()).Namespace(leaf.GetNamespace()).Delete(ctx, leaf.GetName(),
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	k.written.note(nameKey(leaf.GetNamespace(), root), leaf.deleting(metav1.NewTime(c.now())), true)
	return nil
}
