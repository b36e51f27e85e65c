package controller

import (
	"context"
	"errors"
	"io"
	"reflect"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	toolscache "k8s.io/client-go/tools/cache"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/finalstate"
	"rik.dev/rik/internal/multicluster/splitter"
)

// cacheUpstream creates the caches of the types that every kcp has.
func (c *Controller) cacheUpstream() error {
	c.clusters = c.cacheOf(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters"))
	c.placements = c.cacheOf(workloadv1alpha1.SchemeGroupVersion.WithResource("placements"))
	c.crds = c.cacheOf(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	c.negotiated = c.cacheOf(apiresourcev1alpha1.SchemeGroupVersion.WithResource("negotiatedapiresources"))
	for _, w := range []struct {
		cache     toolscache.SharedIndexInformer
		transform toolscache.TransformFunc
		changed   func(before, now any)
	}{
		{c.clusters, typed[workloadv1alpha1.Cluster](withoutKubeconfig), c.clusterChanged},
		{c.placements, typed[workloadv1alpha1.Placement](nil), c.placementChanged},
		{c.crds, typed[apiextensionsv1.CustomResourceDefinition](withoutSchemas), c.typeChanged},
		{c.negotiated, typed[apiresourcev1alpha1.NegotiatedAPIResource](withoutSchema), c.typeChanged},
	} {
		if err := w.cache.SetTransform(w.transform); err != nil {
			return err
		}
		if err := c.watched(w.cache); err != nil {
			return err
		}
		if _, err := w.cache.AddEventHandler(handler(w.changed)); err != nil {
			return err
		}
	}
	return c.cacheFollowers()
}

func (c *Controller) cacheOf(resource schema.GroupVersionResource) toolscache.SharedIndexInformer {
	return dynamicinformer.NewFilteredDynamicInformer(c.dynamic, resource, metav1.NamespaceAll, 0, toolscache.Indexers{
		toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc,
	}, nil).Informer()
}

// watched makes the errors of a watch appear in the log of the controller.
func (c *Controller) watched(cache toolscache.SharedIndexInformer) error {
	return cache.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *toolscache.Reflector, err error) {
		switch {
		case ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err), errors.Is(err, io.EOF):
		default:
			c.config.Logger.Warn("watching the kcp", "type", r.TypeDescription(), "err", err)
		}
	})
}

// typed returns a transform that converts unstructured objects to a type. slim removes fields
// before the conversion.
func typed[T any](slim func(*unstructured.Unstructured)) toolscache.TransformFunc {
	return func(object any) (any, error) {
		u, ok := object.(*unstructured.Unstructured)
		if !ok {
			return object, nil
		}
		u.SetManagedFields(nil)
		if slim != nil {
			slim(u)
		}
		out := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
			return nil, err
		}
		return out, nil
	}
}

func withoutKubeconfig(cluster *unstructured.Unstructured) {
	unstructured.RemoveNestedField(cluster.Object, "spec", "kubeconfig")
}

// withoutSchemas removes the schemas from CRDs. They are most of the data of a kcp, and this
// package does not read them.
func withoutSchemas(crd *unstructured.Unstructured) {
	versions, _, _ := unstructured.NestedFieldNoCopy(crd.Object, "spec", "versions")
	list, _ := versions.([]any)
	for _, version := range list {
		if v, ok := version.(map[string]any); ok {
			delete(v, "schema")
		}
	}
}

func withoutSchema(negotiated *unstructured.Unstructured) {
	unstructured.RemoveNestedField(negotiated.Object, "spec", "openAPIV3Schema")
	unstructured.RemoveNestedField(negotiated.Object, "spec", "columnDefinitions")
}

// listed returns the objects in a cache.
func listed[T any](cache toolscache.SharedIndexInformer) []T {
	objects := cache.GetIndexer().List()
	out := make([]T, 0, len(objects))
	for _, object := range objects {
		if o, ok := object.(T); ok {
			out = append(out, o)
		}
	}
	return out
}

// handler calls changed for every change. before is nil for a new object, and now is nil for a
// deleted one.
func handler(changed func(before, now any)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { changed(nil, object) },
		UpdateFunc: changed,
		DeleteFunc: func(object any) { changed(finalstate.Of(object), nil) },
	}
}

// clusterChanged queues every root when a Cluster has changed in a field that decisions use.
// Heartbeats are too frequent for that.
func (c *Controller) clusterChanged(before, now any) {
	old, _ := before.(*workloadv1alpha1.Cluster)
	current, _ := now.(*workloadv1alpha1.Cluster)
	for _, cluster := range []*workloadv1alpha1.Cluster{old, current} {
		if cluster != nil {
			c.removals.Add(cluster.Name)
		}
	}
	if old == nil || current == nil || !reflect.DeepEqual(decisive(old), decisive(current)) {
		c.everyRoot("")
	}
	if old != nil && current != nil && !slices.Equal(old.Status.SyncedResources, current.Status.SyncedResources) {
		c.everyFollower()
	}
}

// everyFollower queues every follower.
func (c *Controller) everyFollower() {
	for _, f := range c.coreFollowers() {
		for _, object := range f.informer.GetStore().List() {
			if o, ok := object.(*follower); ok {
				c.follows.Add(o.key())
			}
		}
	}
}

// decisive returns the fields that decisions use.
func decisive(c *workloadv1alpha1.Cluster) any {
	problems := map[[2]string]bool{} // without the messages, which decisions do not use
	for _, p := range c.Status.ResourceProblems {
		problems[[2]string{p.Resource, p.Reason}] = true
	}
	return struct {
		cluster  splitter.Cluster
		synced   []string
		problems map[[2]string]bool
	}{splitter.ClusterOf(c, schema.GroupResource{}), c.Status.SyncedResources, problems}
}

func (c *Controller) placementChanged(before, now any) {
	for _, object := range []any{before, now} {
		if p, ok := object.(*workloadv1alpha1.Placement); ok {
			c.everyRoot(p.Namespace)
			return // a Placement stays in its namespace
		}
	}
}

func (c *Controller) typeChanged(_, _ any) { c.types.Add(struct{}{}) }
