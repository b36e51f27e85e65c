package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/reconcile"
)

// removalRecheck is how often a Cluster that is being removed is looked at while types
// are not read yet, of which nothing tells.
const removalRecheck = time.Second

// keepRemoval holds a Cluster whose removal is to delete what it has of roots, and lets go
// of it when all of that is gone. Any other Cluster is not held: it is detached.
func (c *Controller) keepRemoval(ctx context.Context, name string) (time.Duration, error) {
	cluster := c.clusterNamed(name)
	if cluster == nil {
		return 0, nil
	}
	held := slices.Contains(cluster.Finalizers, workloadv1alpha1.SplitterFinalizer)
	deletes := cluster.Annotations[workloadv1alpha1.OnRemovalAnnotation] == workloadv1alpha1.OnRemovalDelete
	switch {
	case cluster.DeletionTimestamp == nil && deletes != held:
		return 0, c.hold(ctx, cluster, deletes)
	case cluster.DeletionTimestamp == nil, !held:
		return 0, nil
	case !deletes:
		return 0, c.hold(ctx, cluster, false)
	}
	kinds, all := c.filledKinds()
	if !all {
		return removalRecheck, nil
	}
	for _, k := range kinds {
		if len(k.find(clusterIndex, name)) > 0 {
			return 0, nil // its end is an event
		}
	}
	for _, f := range c.coreFollowers() {
		if len(f.find(clusterIndex, name)) > 0 {
			return 0, nil
		}
	}
	return 0, c.hold(ctx, cluster, false)
}

// hold puts the finalizer on a Cluster, or takes it off.
func (c *Controller) hold(ctx context.Context, cluster *workloadv1alpha1.Cluster, held bool) error {
	finalizers := slices.DeleteFunc(slices.Clone(cluster.Finalizers), func(f string) bool { return f == workloadv1alpha1.SplitterFinalizer })
	if held {
		finalizers = append(finalizers, workloadv1alpha1.SplitterFinalizer)
	}
	patch, err := body(cluster, map[string]any{"finalizers": finalizers}, nil)
	if err != nil {
		return err
	}
	_, err = c.metadata.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")).
		Patch(ctx, cluster.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	switch {
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w: %w", reconcile.ErrAgain, err)
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("holding the cluster %s until its leaves are gone: %w", cluster.Name, err)
	}
	return nil
}
