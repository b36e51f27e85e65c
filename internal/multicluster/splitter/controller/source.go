package controller

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/cache"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
	"rik.dev/rik/internal/reconcile"
)

// source implements loader.Source with the caches, for one pass over one root.
type source struct {
	c *Controller
	// root and leaves include the latest writes of this controller.
	root   *entry
	leaves []*entry
}

var _ loader.Source = source{}

// Clusters implements loader.Source.
func (s source) Clusters(context.Context) ([]*workloadv1alpha1.Cluster, error) {
	return cache.List[workloadv1alpha1.Cluster](s.c.clusters), nil
}

// Placements implements loader.Source.
func (s source) Placements(_ context.Context, namespace string) ([]*workloadv1alpha1.Placement, error) {
	return cache.Find[workloadv1alpha1.Placement](s.c.placements, toolscache.NamespaceIndex, namespace), nil
}

// Leaves implements loader.Source.
func (s source) Leaves(_ context.Context, root *unstructured.Unstructured, t loader.Type) ([]*unstructured.Unstructured, error) {
	leaves := s.leaves
	if root != s.root.Unstructured {
		k, filled := s.c.kindOf(t.GroupResource())
		if !filled {
			return nil, fmt.Errorf("%w: the objects of %s are being read", reconcile.ErrAgain, t.GroupResource())
		}
		_, leaves = k.family(root.GetNamespace(), root.GetName())
	}
	out := make([]*unstructured.Unstructured, 0, len(leaves))
	for _, leaf := range leaves {
		out = append(out, leaf.Unstructured)
	}
	return out, nil
}

// Related implements loader.Source. It returns an error while a relevant type is being read.
// Otherwise the objects that a root follows would seem to be in no cluster.
func (s source) Related(_ context.Context, namespace string, q loader.Query) ([]loader.Related, error) {
	kinds, known := s.c.allKinds()
	if !known {
		return nil, fmt.Errorf("%w: the types are being read", reconcile.ErrAgain)
	}
	var out []loader.Related
	for _, k := range kinds {
		found, counts := k.related(namespace, q)
		if counts && !k.HasSynced() {
			return nil, fmt.Errorf("%w: the objects of %s are being read", reconcile.ErrAgain, k.GroupResource())
		}
		for _, r := range found {
			out = append(out, loader.Related{Root: r.Unstructured, Type: k.Type})
		}
	}
	return out, nil
}

// Places implements loader.Source.
func (s source) Places(_ context.Context, namespace string, q loader.Query) ([]string, error) {
	matching := s.c.followers.In(namespace, q)
	if len(matching) == 0 {
		return nil, nil
	}
	places := []string{}
	for _, f := range matching {
		places = append(places, workloadv1alpha1.Targets(f.GetLabels())...)
	}
	return places, nil
}

// podGroups are the API groups of the types that make pods. A type of an operator that cannot be
// read does not block passes.
var podGroups = []string{"apps", "batch", "rik.dev"}

// related returns the roots of a type that match a query, and whether the type can have such
// roots.
func (k *kind) related(namespace string, q loader.Query) (roots []*entry, counts bool) {
	for _, ref := range q.Refs {
		if !ref.Is(k.GVK.GroupKind()) {
			continue
		}
		counts = true
		if r := k.get(namespace, ref.Name); r != nil && r.role == loader.Root {
			roots = append(roots, r)
		}
	}
	for _, need := range key.Needs(namespace, q.Needs) {
		roots = append(roots, k.find(useIndex, need)...)
	}
	if q.Referred != "" {
		roots = append(roots, k.find(referenceIndex, key.Name(namespace, q.Referred))...)
	}
	if q.Pods != nil {
		for _, r := range k.find(rootIndex, namespace) {
			if slices.ContainsFunc(r.pods, q.Pods.Matches) {
				roots = append(roots, r)
			}
		}
	}
	makesPods := slices.Contains(podGroups, k.GVK.Group)
	return roots, counts || makesPods && (q.Pods != nil || len(q.Needs) > 0) || q.Referred != "" && (q.ByAny || len(k.Rules.Produces) > 0 || splitter.IsAutoscaler(k.GVK.GroupKind()))
}

// Object implements loader.Source.
func (s source) Object(_ context.Context, kind schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, error) {
	if f := s.c.followers.Get(key.Follower{Kind: kind.Kind, Namespace: namespace, Name: name}); f != nil {
		return f.Unstructured, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name)
}
