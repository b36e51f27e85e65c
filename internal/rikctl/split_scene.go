package rikctl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// snapshot is what a kcp has from which divisions are decided. It is a loader.Source that
// asks once for all objects of a type: whoever looks at a thousand roots makes as many
// requests as who looks at one. It is for one command, and not for several goroutines.
type snapshot struct {
	c client.Client
	// namespaces that are looked at; one without a name is all.
	namespaces []string
	clusters   []*workloadv1alpha1.Cluster
	// placements by their namespaces.
	placements map[string][]*workloadv1alpha1.Placement
	// lists are the objects of types, as far as they were asked for.
	lists map[schema.GroupVersionKind]*objectList
	// names of objects of core/v1 by their kinds; nil where they may not be read.
	names map[string]map[client.ObjectKey]bool
	// types are those that are divided; nil until they are asked for.
	types []loader.Type
	// base is the scene over which this one was laid.
	base *snapshot
}

// objectList are the objects of one type; those that are parts of others by their owner.
type objectList struct {
	all    []*unstructured.Unstructured
	byName map[client.ObjectKey]*unstructured.Unstructured
	// leaves by their controller, or by their label if they have none.
	leaves map[leafKey][]*unstructured.Unstructured
}

type leafKey struct{ namespace, controller, label string }

func newObjectList(objects []*unstructured.Unstructured) *objectList {
	l := &objectList{all: objects, byName: map[client.ObjectKey]*unstructured.Unstructured{}, leaves: map[leafKey][]*unstructured.Unstructured{}}
	for _, o := range objects {
		l.byName[client.ObjectKeyFromObject(o)] = o
		key := leafKey{namespace: o.GetNamespace()}
		if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
			key.controller = ref.Name
		} else if key.label = o.GetLabels()[workloadv1alpha1.OwnedByLabel]; key.label == "" {
			continue
		}
		l.leaves[key] = append(l.leaves[key], o)
	}
	return l
}

// readSnapshot reads the clusters, and the Placements of namespaces.
func readSnapshot(ctx context.Context, c client.Client, namespaces ...string) (*snapshot, error) {
	s := &snapshot{
		c: c, namespaces: namespaces, placements: map[string][]*workloadv1alpha1.Placement{},
		lists: map[schema.GroupVersionKind]*objectList{}, names: map[string]map[client.ObjectKey]bool{},
	}
	clusters := &workloadv1alpha1.ClusterList{}
	if err := c.List(ctx, clusters); err != nil {
		return nil, fmt.Errorf("reading the clusters: %w", err)
	}
	s.clusters = pointers(clusters.Items)
	for _, namespace := range namespaces {
		placements := &workloadv1alpha1.PlacementList{}
		if err := c.List(ctx, placements, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("reading the placements: %w", err)
		}
		for _, p := range pointers(placements.Items) {
			s.placements[p.Namespace] = append(s.placements[p.Namespace], p)
		}
	}
	return s, nil
}

// over is a scene that has what this one has, until it is changed.
func (s *snapshot) over() *snapshot {
	return &snapshot{
		c: s.c, namespaces: s.namespaces, clusters: slices.Clone(s.clusters), placements: maps.Clone(s.placements),
		lists: map[schema.GroupVersionKind]*objectList{}, base: s,
	}
}

// Clusters implements loader.Source.
func (s *snapshot) Clusters(context.Context) ([]*workloadv1alpha1.Cluster, error) {
	return s.clusters, nil
}

// Placements implements loader.Source.
func (s *snapshot) Placements(_ context.Context, namespace string) ([]*workloadv1alpha1.Placement, error) {
	return s.placements[namespace], nil
}

// Leaves implements loader.Source.
func (s *snapshot) Leaves(ctx context.Context, root *unstructured.Unstructured, t loader.Type) ([]*unstructured.Unstructured, error) {
	list, err := s.list(ctx, t.GVK)
	if err != nil {
		return nil, err
	}
	leaves := list.leaves[leafKey{namespace: root.GetNamespace(), controller: root.GetName()}]
	return append(leaves[:len(leaves):len(leaves)],
		list.leaves[leafKey{namespace: root.GetNamespace(), label: splitter.OwnerLabel(root.GetName())}]...), nil
}

// Object implements loader.Source.
func (s *snapshot) Object(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, error) {
	list, err := s.list(ctx, kind)
	if err != nil {
		return nil, err
	}
	if o := list.byName[client.ObjectKey{Namespace: namespace, Name: name}]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name)
}

// Related implements loader.Source.
func (s *snapshot) Related(ctx context.Context, namespace string, q loader.Query) ([]loader.Related, error) {
	types, err := s.divided(ctx)
	if err != nil {
		return nil, err
	}
	var out []loader.Related
	for _, t := range types {
		refers := slices.ContainsFunc(q.Refs, func(r splitter.Reference) bool { return r.Is(t.GVK.GroupKind()) })
		if q.Pods == nil && len(q.Needs) == 0 && !refers && !q.ByAny && (q.Referred == "" || len(t.Rules.Produces) == 0 && !splitter.IsAutoscaler(t.GVK.GroupKind())) {
			continue
		}
		roots, err := s.roots(ctx, t)
		if err != nil {
			return nil, err
		}
		for _, root := range roots {
			if root.GetNamespace() == namespace {
				out = append(out, loader.Related{Root: root, Type: t})
			}
		}
	}
	return out, nil
}

// Places implements loader.Source. Where no Ingresses are served there are none.
func (s *snapshot) Places(ctx context.Context, namespace string, q loader.Query) ([]string, error) {
	var out []string
	for _, kind := range []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind(splitter.KindService), corev1.SchemeGroupVersion.WithKind(splitter.KindServiceAccount), networkingv1.SchemeGroupVersion.WithKind("Ingress"),
	} {
		ofServices := kind.Kind == splitter.KindService
		if ofServices && q.Services == nil || !ofServices && len(q.Needs) == 0 {
			continue
		}
		list, err := s.list(ctx, kind)
		if isUnknownType(err) || meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, o := range list.all {
			needs, _ := splitter.Needs(o) // what cannot be read needs nothing
			if o.GetNamespace() != namespace || ofServices && !q.Services.Matches(labels.Set(o.GetLabels())) || !ofServices && !q.IsNeeded(needs) {
				continue
			}
			if out == nil {
				out = []string{}
			}
			out = append(out, workloadv1alpha1.Targets(o.GetLabels())...)
		}
	}
	return out, nil
}

// divided are the types that are divided, which are asked for once.
func (s *snapshot) divided(ctx context.Context) ([]loader.Type, error) {
	if s.base != nil {
		return s.base.divided(ctx)
	}
	if s.types == nil {
		types, err := readTypes(ctx, s.c)
		if err != nil {
			return nil, err
		}
		s.types = types
	}
	return s.types, nil
}

// roots are the roots of a type.
func (s *snapshot) roots(ctx context.Context, t loader.Type) ([]*unstructured.Unstructured, error) {
	list, err := s.list(ctx, t.GVK)
	if err != nil {
		return nil, err
	}
	var roots []*unstructured.Unstructured
	for _, o := range list.all {
		if loader.RoleOf(o, t) == loader.Root && o.GetDeletionTimestamp() == nil {
			roots = append(roots, o)
		}
	}
	return roots, nil
}

// list gives the objects of a type, which are asked for once.
func (s *snapshot) list(ctx context.Context, kind schema.GroupVersionKind) (*objectList, error) {
	if list := s.lists[kind]; list != nil {
		return list, nil
	}
	if s.base != nil {
		return s.base.list(ctx, kind)
	}
	var all []*unstructured.Unstructured
	for _, namespace := range s.namespaces {
		objects, err := listObjects(ctx, s.c, kind, namespace, "")
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	s.lists[kind] = newObjectList(all)
	return s.lists[kind], nil
}

// find is an object of the scene; nil if there is none.
func (s *snapshot) find(ctx context.Context, like *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	list, err := s.list(ctx, like.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	return list.byName[client.ObjectKeyFromObject(like)], nil
}

// put changes the scene as if an object were stored.
func (s *snapshot) put(ctx context.Context, o *unstructured.Unstructured) error {
	list, err := s.list(ctx, o.GroupVersionKind())
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(list.all), func(other *unstructured.Unstructured) bool {
		return client.ObjectKeyFromObject(other) == client.ObjectKeyFromObject(o)
	})
	s.lists[o.GroupVersionKind()] = newObjectList(append(others, o))
	return nil
}

// putCluster changes the scene as if a Cluster were stored.
func (s *snapshot) putCluster(c *workloadv1alpha1.Cluster) {
	s.clusters = slices.DeleteFunc(s.clusters, func(other *workloadv1alpha1.Cluster) bool { return other.Name == c.Name })
	s.clusters = append(s.clusters, c)
}

// putPlacement changes the scene as if a Placement were stored.
func (s *snapshot) putPlacement(p *workloadv1alpha1.Placement) {
	others := slices.DeleteFunc(slices.Clone(s.placements[p.Namespace]), func(other *workloadv1alpha1.Placement) bool { return other.Name == p.Name })
	s.placements[p.Namespace] = append(others, p)
}

// cluster is one by its name; nil if there is none.
func (s *snapshot) cluster(name string) *workloadv1alpha1.Cluster {
	if i := slices.IndexFunc(s.clusters, func(c *workloadv1alpha1.Cluster) bool { return c.Name == name }); i >= 0 {
		return s.clusters[i]
	}
	return nil
}

// rehearse reads what there is of a root, and walks on from there to rest. A root whose
// wishes have problems stays as it is.
func (s *snapshot) rehearse(ctx context.Context, root *unstructured.Unstructured, t loader.Type, now time.Time) (*loader.World, *splitter.Rehearsal, error) {
	w, err := loader.Read(ctx, s, root, t, now)
	if err != nil || len(w.Problems) > 0 {
		return w, nil, err
	}
	r := splitter.Rehearse(w.State)
	return w, &r, nil
}

// listObjects reads the objects of a type that have some labels, in pieces, without what
// tells who set what.
func listObjects(ctx context.Context, c client.Client, kind schema.GroupVersionKind, namespace, selector string) ([]*unstructured.Unstructured, error) {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page := &unstructured.UnstructuredList{}
		page.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		return page, c.List(ctx, page, &client.ListOptions{Namespace: namespace, Raw: &o})
	})
	var objects []*unstructured.Unstructured
	err := pages.EachListItem(ctx, metav1.ListOptions{LabelSelector: selector}, func(o runtime.Object) error {
		object := o.(*unstructured.Unstructured)
		object.SetManagedFields(nil)
		objects = append(objects, object)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the objects of kind %s: %w", kind.Kind, err)
	}
	return objects, nil
}

// exists says whether there is an object of core/v1. To who may not look it seems so.
func (s *snapshot) exists(ctx context.Context, kind, namespace, name string) (bool, error) {
	known, ok := s.names[kind]
	if !ok {
		var err error
		if known, err = s.namesOf(ctx, kind); err != nil && !apierrors.IsForbidden(err) {
			return false, fmt.Errorf("reading the names of objects of kind %s: %w", kind, err)
		}
		s.names[kind] = known
	}
	return known == nil || known[client.ObjectKey{Namespace: namespace, Name: name}], nil
}

func (s *snapshot) namesOf(ctx context.Context, kind string) (map[client.ObjectKey]bool, error) {
	known := map[client.ObjectKey]bool{}
	for _, namespace := range s.namespaces {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
		if err := s.c.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, err
		}
		for i := range list.Items {
			known[client.ObjectKeyFromObject(&list.Items[i])] = true
		}
	}
	return known, nil
}
