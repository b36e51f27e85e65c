package splitcontroller

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter/view"
)

// source is the caches, for one pass over one root.
type source struct {
	c      *Controller
	leaves []*entry
}

var _ view.Source = source{}

// Clusters implements view.Source.
func (s source) Clusters(context.Context) ([]*workloadv1alpha1.Cluster, error) {
	return listed[*workloadv1alpha1.Cluster](s.c.clusters), nil
}

// Placements implements view.Source.
func (s source) Placements(_ context.Context, namespace string) ([]*workloadv1alpha1.Placement, error) {
	objects, err := s.c.placements.GetIndexer().ByIndex(toolscache.NamespaceIndex, namespace)
	var out []*workloadv1alpha1.Placement
	for _, object := range objects {
		if p, ok := object.(*workloadv1alpha1.Placement); ok {
			out = append(out, p)
		}
	}
	return out, err
}

// Leaves implements view.Source.
func (s source) Leaves(context.Context, *unstructured.Unstructured, view.Type) ([]*unstructured.Unstructured, error) {
	out := make([]*unstructured.Unstructured, 0, len(s.leaves))
	for _, leaf := range s.leaves {
		out = append(out, leaf.Unstructured)
	}
	return out, nil
}

// Object implements view.Source.
func (s source) Object(_ context.Context, kind schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, error) {
	if f := s.c.follower(needKey{kind.Kind, namespace, name}); f != nil {
		return f.Unstructured, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name)
}
