package negotiation

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/negotiation/plan"
)

// nativeResources are the types that a kcp itself serves and that are synced.
var nativeResources = []string{"services", "persistentvolumeclaims", "configmaps", "secrets", "serviceaccounts"}

// runRefresh reads the kcp's own types at intervals until ctx ends, and queues the types that
// changed.
func (c *Controller) runRefresh(ctx context.Context) {
	// The only error is that the context has ended.
	_ = wait.PollUntilContextCancel(ctx, c.config.Refresh, false, func(ctx context.Context) (bool, error) {
		changed, err := c.refresh(ctx)
		if err != nil && ctx.Err() == nil {
			c.config.Logger.Warn("reading the kcp's own types again", "err", err)
		}
		for _, key := range changed {
			c.config.Logger.Info("the kcp serves a type of its own in another way", "resource", key.String())
			c.queue.Add(key)
		}
		return false, nil
	})
}

// refresh reads the kcp's own types again, and returns those that have changed. After an error,
// nothing changes.
func (c *Controller) refresh(ctx context.Context) ([]schema.GroupResource, error) {
	found, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	before := c.upstream.Swap(found)
	var changed []schema.GroupResource
	for key, specs := range found.native {
		if !equality.Semantic.DeepEqual(specs, before.native[key]) {
			changed = append(changed, key)
		}
	}
	for key := range before.native {
		if _, still := found.native[key]; !still {
			changed = append(changed, key)
		}
	}
	return changed, nil
}

// look reads what a pass must know of the kcp.
func (c *Controller) look(ctx context.Context) (*upstream, error) {
	out := &upstream{native: map[schema.GroupResource][]apiresourcev1alpha1.CommonAPIResourceSpec{}}
	system := &metav1.PartialObjectMetadata{}
	system.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := c.client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		return nil, fmt.Errorf("reading the kcp's system namespace: %w", err)
	}
	out.anchor = &metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: system.Name, UID: system.UID}
	pulled, err := c.own.Pull(ctx, nativeResources...)
	if err != nil {
		return nil, fmt.Errorf("pulling the kcp's own types: %w", err)
	}
	for _, p := range pulled.Problems {
		return nil, fmt.Errorf("pulling the kcp's own type %s: %w", p.Resource, p.Err)
	}
	if slices.ContainsFunc(pulled.Unknown, func(gv schema.GroupVersion) bool { return gv.Group == corev1.GroupName }) {
		return nil, errors.New("the kcp did not return its own types")
	}
	for _, crd := range pulled.CRDs {
		key := schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
		for i := range crd.Spec.Versions {
			spec, err := plan.SpecOf(crd, crd.Spec.Versions[i].Name)
			if err != nil {
				return nil, fmt.Errorf("reading the kcp's own type %s: %w", key, err)
			}
			out.native[key] = append(out.native[key], *spec)
		}
	}
	return out, nil
}
