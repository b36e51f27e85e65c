package controller

import (
	"cmp"
	"reflect"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	toolscache "k8s.io/client-go/tools/cache"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/cache"
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
		handler   toolscache.ResourceEventHandler
	}{
		{c.clusters, typed[workloadv1alpha1.Cluster](withoutKubeconfig), cache.Changes(c.clusterChanged)},
		{c.placements, typed[workloadv1alpha1.Placement](nil), cache.Changes(c.placementChanged)},
		{c.crds, typed[apiextensionsv1.CustomResourceDefinition](withoutSchemas), cache.Changes(func(_, _ *apiextensionsv1.CustomResourceDefinition) { c.typeChanged() })},
		{c.negotiated, typed[apiresourcev1alpha1.NegotiatedAPIResource](withoutSchema), cache.Changes(func(_, _ *apiresourcev1alpha1.NegotiatedAPIResource) { c.typeChanged() })},
	} {
		if err := w.cache.SetTransform(w.transform); err != nil {
			return err
		}
		if err := cache.Logged(w.cache, c.config.Logger); err != nil {
			return err
		}
		if _, err := w.cache.AddEventHandler(w.handler); err != nil {
			return err
		}
	}
	return nil
}

func (c *Controller) cacheOf(resource schema.GroupVersionResource) toolscache.SharedIndexInformer {
	return dynamicinformer.NewFilteredDynamicInformer(c.dynamic, resource, metav1.NamespaceAll, 0, toolscache.Indexers{
		toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc,
	}, nil).Informer()
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

// clusterChanged queues every root when a Cluster has changed in a field that decisions use.
// Heartbeats are too frequent for that.
func (c *Controller) clusterChanged(old, current *workloadv1alpha1.Cluster) {
	for _, cluster := range []*workloadv1alpha1.Cluster{old, current} {
		if cluster != nil {
			c.removals.Add(cluster.Name)
		}
	}
	if old == nil || current == nil || !reflect.DeepEqual(decisive(old), decisive(current)) {
		c.everyRoot("")
	}
	if old != nil && current != nil && !slices.Equal(old.Status.SyncedResources, current.Status.SyncedResources) {
		c.followers.CheckAll()
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

// placementChanged queues the roots of a namespace. A Placement stays in its namespace.
func (c *Controller) placementChanged(before, now *workloadv1alpha1.Placement) {
	c.everyRoot(cmp.Or(before, now).Namespace)
}

func (c *Controller) typeChanged() { c.types.Add(struct{}{}) }
