package negotiation

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/negotiation/plan"
)

// writeNegotiated creates, updates and deletes NegotiatedAPIResources, without their status. It
// sets Have to the result, for the status.
func (c *Controller) writeNegotiated(ctx context.Context, p *plan.Plan) error {
	for i := range p.Versions {
		v := &p.Versions[i]
		if err := c.writeVersion(ctx, v); err != nil {
			return fmt.Errorf("version %s: %w", v.Name, err)
		}
	}
	return nil
}

func (c *Controller) writeVersion(ctx context.Context, v *plan.Version) error {
	switch {
	case v.Want == nil && v.Have == nil:
		return nil
	case v.Want == nil:
		return c.remove(ctx, v.Have)
	case v.Have == nil:
		made := v.Want.DeepCopy()
		if err := c.client.Create(ctx, made); err != nil {
			return fmt.Errorf("making %s: %w", v.Want.Name, err)
		}
		c.config.Logger.Info("negotiated a type", "resource", made.Name, "publish", made.Spec.Publish)
		v.Have = made
		return nil
	case unchanged(v.Have, v.Want):
		return nil
	}
	changed := v.Want.DeepCopy()
	if err := c.client.Update(ctx, changed); err != nil {
		return fmt.Errorf("changing %s: %w", v.Want.Name, err)
	}
	c.config.Logger.Info("changed a negotiated type", "resource", changed.Name, "publish", changed.Spec.Publish)
	v.Have = changed
	return nil
}

// unchanged compares everything except the status.
func unchanged(have, want *apiresourcev1alpha1.NegotiatedAPIResource) bool {
	return equality.Semantic.DeepEqual(have.Spec, want.Spec) && equality.Semantic.DeepEqual(have.Annotations, want.Annotations) &&
		slices.Equal(have.Finalizers, want.Finalizers)
}

// remove removes the finalizer of a NegotiatedAPIResource and deletes it.
func (c *Controller) remove(ctx context.Context, n *apiresourcev1alpha1.NegotiatedAPIResource) error {
	if slices.Contains(n.Finalizers, apiresourcev1alpha1.Finalizer) {
		free := n.DeepCopy()
		free.Finalizers = slices.DeleteFunc(free.Finalizers, func(f string) bool { return f == apiresourcev1alpha1.Finalizer })
		if err := c.client.Update(ctx, free); err != nil {
			return fmt.Errorf("releasing %s: %w", n.Name, err)
		}
	}
	if n.DeletionTimestamp != nil {
		return nil
	}
	if err := c.client.Delete(ctx, n, client.Preconditions{UID: &n.UID}); err != nil {
		return fmt.Errorf("deleting %s: %w", n.Name, err)
	}
	c.config.Logger.Info("a type is no longer negotiated", "resource", n.Name)
	return nil
}

// writeCRD executes the step of a plan. If the server rejects the content of the CRD, it returns
// the server's error in refused.
func (c *Controller) writeCRD(ctx context.Context, change plan.CRDChange) (refused string, err error) {
	if change.Action == plan.CRDKeep {
		return "", nil
	}
	crd := change.CRD.DeepCopy()
	switch change.Action {
	case plan.CRDCreate:
		err = c.client.Create(ctx, crd)
	case plan.CRDUpdate:
		err = c.client.Update(ctx, crd)
	case plan.CRDTrim:
		err = c.client.Status().Update(ctx, crd)
	case plan.CRDDelete:
		err = c.client.Delete(ctx, crd, client.Preconditions{UID: &crd.UID, ResourceVersion: &crd.ResourceVersion})
	}
	if apierrors.IsInvalid(err) {
		c.metrics.refused.Inc()
		c.config.Logger.Warn("the API server refuses a CRD", "crd", crd.Name, "err", err)
		return err.Error(), nil
	}
	if err != nil {
		return "", fmt.Errorf("%s of CRD %s: %w", change.Action, crd.Name, err)
	}
	c.metrics.wrote(change.Action)
	c.config.Logger.Info("wrote a CRD", "crd", crd.Name, "action", string(change.Action))
	return "", nil
}

// writeStatus writes the status of every NegotiatedAPIResource and import that has changed.
func (c *Controller) writeStatus(ctx context.Context, p *plan.Plan) error {
	for i := range p.Versions {
		v := &p.Versions[i]
		if v.Want != nil && v.Have != nil {
			next := v.Have.DeepCopy()
			next.Status.Conditions = conditions(next.Status.Conditions, v.Want.Status.Conditions, plan.NegotiatedConditions, next.Generation)
			if !equality.Semantic.DeepEqual(v.Have.Status, next.Status) {
				if err := c.client.Status().Update(ctx, next); err != nil {
					return fmt.Errorf("writing the status of %s: %w", next.Name, err)
				}
			}
		}
		for _, result := range v.ImportResults {
			next := result.Import.DeepCopy()
			have := next.Status.Conditions
			next.Status = *result.Status.DeepCopy()
			next.Status.Conditions = conditions(have, result.Status.Conditions, plan.ImportConditions, next.Generation)
			if equality.Semantic.DeepEqual(result.Import.Status, next.Status) {
				continue
			}
			if err := c.client.Status().Update(ctx, next); err != nil {
				return fmt.Errorf("writing the status of import %s: %w", next.Name, err)
			}
		}
	}
	return nil
}

// conditions returns the existing conditions, updated by the wanted ones. A condition that does
// not change keeps its time.
func conditions(have, want []metav1.Condition, owned []string, generation int64) []metav1.Condition {
	out := slices.Clone(have)
	for _, c := range want {
		c.ObservedGeneration = generation
		meta.SetStatusCondition(&out, c)
	}
	return slices.DeleteFunc(out, func(c metav1.Condition) bool {
		return slices.Contains(owned, c.Type) && meta.FindStatusCondition(want, c.Type) == nil
	})
}
