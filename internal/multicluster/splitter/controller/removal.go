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
	"rik.dev/rik/internal/multicluster/splitter/patch"
	"rik.dev/rik/internal/reconcile"
)

// removalRecheck is the interval at which a Cluster that is being removed is checked while types
// are still being read. There is no event for the end of the reading.
const removalRecheck = time.Second

// keepRemoval adds the finalizer to a Cluster whose removal deletes the objects of roots, and
// removes it when these objects are gone. It does not add it to other Clusters: they are
// detached.
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
			return 0, nil // the end of the deletion is an event
		}
	}
	if c.followers.IsAnyIn(name) {
		return 0, nil
	}
	return 0, c.hold(ctx, cluster, false)
}

// hold adds the finalizer to a Cluster or removes it.
func (c *Controller) hold(ctx context.Context, cluster *workloadv1alpha1.Cluster, held bool) error {
	finalizers := slices.DeleteFunc(slices.Clone(cluster.Finalizers), func(f string) bool { return f == workloadv1alpha1.SplitterFinalizer })
	if held {
		finalizers = append(finalizers, workloadv1alpha1.SplitterFinalizer)
	}
	data, err := patch.Body(cluster, map[string]any{"finalizers": finalizers}, nil)
	if err != nil {
		return err
	}
	_, err = c.metadata.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")).
		Patch(ctx, cluster.Name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager})
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
