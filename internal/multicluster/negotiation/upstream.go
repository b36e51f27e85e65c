package negotiation

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/crdpuller"
	"rik.dev/rik/internal/multicluster/negotiation/plan"
)

// nativeResources are the types that a kcp serves itself and that are synced.
var nativeResources = []string{"services", "persistentvolumeclaims", "configmaps", "secrets", "serviceaccounts"}

// look finds what a pass has to know of the kcp. What it serves itself changes only
// when it is started anew.
func (c *Controller) look(ctx context.Context) (upstream, error) {
	out := upstream{native: map[schema.GroupResource][]apiresourcev1alpha1.CommonAPIResourceSpec{}}
	system := &metav1.PartialObjectMetadata{}
	system.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := c.client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		return out, fmt.Errorf("reading the kcp's system namespace: %w", err)
	}
	out.anchor = &metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: system.Name, UID: system.UID}
	puller, err := crdpuller.New(crdpuller.Config{Rest: c.config.Rest, Logger: c.config.Logger})
	if err != nil {
		return out, fmt.Errorf("making a puller of the kcp's own types: %w", err)
	}
	pulled, err := puller.Pull(ctx, nativeResources...)
	if err != nil {
		return out, fmt.Errorf("pulling the kcp's own types: %w", err)
	}
	for _, p := range pulled.Problems {
		return out, fmt.Errorf("pulling the kcp's own type %s: %w", p.Resource, p.Err)
	}
	for _, crd := range pulled.CRDs {
		key := schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
		for i := range crd.Spec.Versions {
			spec, err := plan.SpecOf(crd, crd.Spec.Versions[i].Name)
			if err != nil {
				return out, fmt.Errorf("reading the kcp's own type %s: %w", key, err)
			}
			out.native[key] = append(out.native[key], *spec)
		}
	}
	return out, nil
}
