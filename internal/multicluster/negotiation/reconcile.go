package negotiation

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/negotiation/plan"
	"rik.dev/rik/internal/multicluster/negotiation/plan/storage"
	"rik.dev/rik/internal/reconcile"
)

// refusedAgain is when a CRD that the server refused is written again, if nothing changes before.
const refusedAgain = time.Minute

func (c *Controller) reconcile(ctx context.Context, key schema.GroupResource) (time.Duration, error) {
	again, err := c.pass(ctx, key)
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		// The cache is out of date. An event will update it.
		return 0, fmt.Errorf("%w: %w", reconcile.ErrAgain, err)
	case err != nil:
		return 0, fmt.Errorf("negotiating %s: %w", key, err)
	}
	return again, nil
}

// pass makes one pass over a resource.
func (c *Controller) pass(ctx context.Context, key schema.GroupResource) (time.Duration, error) {
	state, err := c.state(ctx, key)
	if err != nil {
		return 0, err
	}
	p, err := storage.Decide(ctx, c.dynamic, &state, plan.Decide)
	if err != nil {
		return 0, err
	}
	if err := c.writeNegotiated(ctx, p); err != nil {
		return 0, err
	}
	refused, err := c.writeCRD(ctx, p.CRD)
	if err != nil {
		return 0, err
	}
	if refused != "" {
		state.Refused = refused
		refusal, err := plan.Decide(state)
		if err != nil {
			return 0, err
		}
		return refusedAgain, c.writeStatus(ctx, refusal)
	}
	if p.Recheck {
		return c.config.Recheck, c.writeStatus(ctx, p)
	}
	return 0, c.writeStatus(ctx, p)
}

// state returns the state of a resource from the caches.
func (c *Controller) state(ctx context.Context, key schema.GroupResource) (plan.State, error) {
	upstream := c.upstream.Load()
	state := plan.State{Resource: key, Native: upstream.native[key], Anchor: upstream.anchor, AutoPublish: c.config.AutoPublish,
		Founded: map[string]time.Time{}}
	var imports apiresourcev1alpha1.APIResourceImportList
	var negotiated apiresourcev1alpha1.NegotiatedAPIResourceList
	clusters := metav1.PartialObjectMetadataList{}
	clusters.SetGroupVersionKind(workloadv1alpha1.SchemeGroupVersion.WithKind("ClusterList"))
	crd := &apiextensionsv1.CustomResourceDefinition{}
	of := client.MatchingFields{resourceIndex: key.String()}
	problem := errors.Join(c.cache.List(ctx, &imports, of), c.cache.List(ctx, &negotiated, of), c.cache.List(ctx, &clusters))
	switch err := c.cache.Get(ctx, client.ObjectKey{Name: key.String()}, crd); {
	case err == nil:
		state.CRD = crd
	case !apierrors.IsNotFound(err):
		problem = errors.Join(problem, err)
	}
	if problem != nil {
		return state, fmt.Errorf("reading the caches: %w", problem)
	}
	for i := range imports.Items {
		state.Imports = append(state.Imports, &imports.Items[i])
	}
	for i := range negotiated.Items {
		state.Negotiated = append(state.Negotiated, &negotiated.Items[i])
	}
	for i := range clusters.Items {
		state.Founded[clusters.Items[i].Name] = clusters.Items[i].CreationTimestamp.Time
	}
	return state, nil
}
