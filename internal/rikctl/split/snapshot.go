package split

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
	"rik.dev/rik/internal/rikctl/clierror"
)

// snapshot holds the objects of a kcp from which splits are decided. It is a loader.Source that
// lists each type once, so a thousand roots need no more requests than one. It is for one
// command and not safe for concurrent use.
type snapshot struct {
	c client.Client
	// namespaces to read; an empty name means all.
	namespaces []string
	clusters   []*workloadv1alpha1.Cluster
	// placements by namespace.
	placements map[string][]*workloadv1alpha1.Placement
	// lists holds the objects of the types that were read so far.
	lists map[schema.GroupVersionKind]*objectList
	// names of core/v1 objects by kind; nil for a kind that the user may not read.
	names map[string]map[client.ObjectKey]bool
	// types are the types to split; nil until they are read.
	types []loader.Type
	// base is the snapshot under this one.
	base *snapshot
}

// objectList holds the objects of one type, with an index of leaves by owner.
type objectList struct {
	all    []*unstructured.Unstructured
	byName map[client.ObjectKey]*unstructured.Unstructured
	// leaves by their controller, or by their label if they have no controller.
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

// readSnapshot reads the clusters, and the Placements of the namespaces.
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

// over returns a snapshot with the same content, which the caller can change without changing s.
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

// Places implements loader.Source. If the server does not serve Ingresses, the result has none.
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
		if clierror.IsUnknownType(err) || meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, o := range list.all {
			needs, _ := splitter.Needs(o) // an object that cannot be parsed needs nothing
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

// divided returns the types to split. It reads them once.
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

// roots returns the roots of a type.
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

// list returns the objects of a type. It reads them once.
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

// find returns the object of the snapshot with the same type and name, or nil.
func (s *snapshot) find(ctx context.Context, like *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	list, err := s.list(ctx, like.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	return list.byName[client.ObjectKeyFromObject(like)], nil
}

// put adds an object to the snapshot, as if it were stored.
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

// putCluster adds a Cluster to the snapshot, as if it were stored.
func (s *snapshot) putCluster(c *workloadv1alpha1.Cluster) {
	s.clusters = slices.DeleteFunc(s.clusters, func(other *workloadv1alpha1.Cluster) bool { return other.Name == c.Name })
	s.clusters = append(s.clusters, c)
}

// putPlacement adds a Placement to the snapshot, as if it were stored.
func (s *snapshot) putPlacement(p *workloadv1alpha1.Placement) {
	others := slices.DeleteFunc(slices.Clone(s.placements[p.Namespace]), func(other *workloadv1alpha1.Placement) bool { return other.Name == p.Name })
	s.placements[p.Namespace] = append(others, p)
}

// cluster returns the Cluster with a name, or nil.
func (s *snapshot) cluster(name string) *workloadv1alpha1.Cluster {
	if i := slices.IndexFunc(s.clusters, func(c *workloadv1alpha1.Cluster) bool { return c.Name == name }); i >= 0 {
		return s.clusters[i]
	}
	return nil
}

// simulate reads the state of a root and computes all steps from there. For a root with problems
// there are no steps and the simulation is nil.
func (s *snapshot) simulate(ctx context.Context, root *unstructured.Unstructured, t loader.Type, now time.Time) (*loader.RootState, *splitter.Simulation, error) {
	w, err := loader.Read(ctx, s, root, t, now)
	if err != nil || len(w.Problems) > 0 {
		return w, nil, err
	}
	r := splitter.Simulate(w.State)
	return w, &r, nil
}

// listObjects lists the objects of a type that match a selector, in pages. It removes
// managedFields.
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

// exists reports whether an object of core/v1 exists. It returns true if the user may not read
// that kind.
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
