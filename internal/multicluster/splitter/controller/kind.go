package controller

import (
	"log/slog"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	toolscache "k8s.io/client-go/tools/cache"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/cache"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// The indexes of a divided type.
const (
	// familyIndex finds a root and its leaves.
	familyIndex = "family"
	// rootIndex finds the roots of a namespace.
	rootIndex = "root"
	// needIndex finds the leaves that need an object, and useIndex finds the roots.
	needIndex = "need"
	useIndex  = "use"
	// productIndex finds the roots for which an object is made in a cluster.
	productIndex = "product"
	// podIndex finds the leaves that make pods with a label.
	podIndex = "pod"
	// clusterIndex finds the leaves of a cluster, and other objects with its syncer's finalizer.
	clusterIndex = "cluster"
	// referenceIndex finds the roots that refer to a name in a namespace.
	referenceIndex = "reference"
	// aboutIndex finds the roots of a namespace that select pods or Services.
	aboutIndex = "about"
	// placeIndex finds the leaves of a namespace in a cluster.
	placeIndex = "place"
)

// kind is one divided type with the cache of its objects.
type kind struct {
	loader.Type

	*cache.Cache
	// written contains the writes that the cache has not delivered yet.
	written *writes
}

// newKind creates the cache of a type. Nothing fills it yet.
func newKind(client dynamic.Interface, t loader.Type, log *slog.Logger) (*kind, error) {
	k := &kind{Type: t, written: newWrites()}
	informer := dynamicinformer.NewFilteredDynamicInformer(client, t.GVR(), metav1.NamespaceAll, 0, toolscache.Indexers{
		familyIndex: cache.IndexBy(k.familyKeys), rootIndex: cache.IndexBy(rootKeys), needIndex: cache.IndexBy(needKeys),
		podIndex: cache.IndexBy(podKeys), clusterIndex: cache.IndexBy(clusterKeys), placeIndex: cache.IndexBy(placeKeys),
		referenceIndex: cache.IndexBy(referenceKeys), useIndex: cache.IndexBy(useKeys), productIndex: cache.IndexBy(productKeys), aboutIndex: cache.IndexBy(aboutKeys),
	}, nil).Informer()
	if err := informer.SetTransform(k.transform); err != nil {
		return nil, err
	}
	var err error
	k.Cache, err = cache.New(informer, log)
	return k, err
}

func (k *kind) transform(object any) (any, error) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		return newEntry(u, k.Type)
	}
	return object, nil
}

// familyKeys returns the keys under which an object is indexed: the name of the root or, for a
// leaf without a controller, the label of the root.
func (k *kind) familyKeys(r *entry) []string {
	byLabel := func(value string) string { return key.Label(r.GetNamespace(), value) }
	switch r.role {
	case loader.Leaf:
		if name, _ := loader.Owner(r, k.Type); name != "" {
			return []string{key.Name(r.GetNamespace(), name)}
		}
		return []string{byLabel(r.GetLabels()[workloadv1alpha1.OwnedByLabel])}
	default:
		return []string{key.Name(r.GetNamespace(), r.GetName()), byLabel(splitter.OwnerLabel(r.GetName()))}
	}
}

func rootKeys(r *entry) []string {
	if r.role == loader.Root {
		return []string{r.GetNamespace()}
	}
	return nil
}

func needKeys(r *entry) []string {
	if r.role != loader.Leaf {
		return nil
	}
	return key.Needs(r.GetNamespace(), r.needs)
}

func useKeys(r *entry) []string {
	if r.role != loader.Root {
		return nil
	}
	return key.Needs(r.GetNamespace(), r.needs)
}

func productKeys(r *entry) []string { return key.Needs(r.GetNamespace(), r.products) }

func podKeys(r *entry) []string {
	var keys []string
	if r.role != loader.Leaf {
		return nil
	}
	for _, pod := range r.pods {
		set, _ := pod.(labels.Set)
		for name, value := range set {
			keys = append(keys, key.Pod(r.GetNamespace(), name, value))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func clusterKeys(r *entry) []string {
	var keys []string
	if r.role == loader.Leaf {
		keys = workloadv1alpha1.Targets(r.GetLabels())
	}
	return append(keys, splitter.HeldAfter(r)...)
}

func placeKeys(r *entry) []string {
	if cluster := r.GetLabels()[workloadv1alpha1.ClusterLabel]; r.role == loader.Leaf && cluster != "" {
		return []string{key.Name(r.GetNamespace(), cluster)}
	}
	return nil
}

func referenceKeys(r *entry) []string { return key.References(r.GetNamespace(), r.refs) }

func aboutKeys(r *entry) []string {
	if r.selector != nil || r.services != nil {
		return []string{r.GetNamespace()}
	}
	return nil
}

// get returns an object by namespace and name, or nil if it does not exist.
func (k *kind) get(namespace, name string) *entry {
	return cache.Get[entry](k, key.Name(namespace, name))
}

// find returns the objects under a key of an index.
func (k *kind) find(index, under string) []*entry { return cache.Find[entry](k, index, under) }

// rootKey returns the key of a root of the type.
func (k *kind) rootKey(namespace, name string) rootKey {
	return rootKey{GroupResource: k.GroupResource(), Namespace: namespace, Name: name}
}

// addRoots queues roots of a type.
func (c *Controller) addRoots(k *kind, roots ...*entry) {
	for _, root := range roots {
		c.roots.Add(k.rootKey(root.GetNamespace(), root.GetName()))
	}
}

// family returns the object with the name of a root, and the objects that may be its leaves. Both
// include the latest writes of this controller.
func (k *kind) family(namespace, name string) (root *entry, leaves []*entry) {
	objects := map[string]*entry{}
	for _, under := range []string{key.Name(namespace, name), key.Label(namespace, splitter.OwnerLabel(name))} {
		for _, r := range k.find(familyIndex, under) {
			objects[r.GetName()] = r
		}
	}
	for _, r := range k.written.over(key.Name(namespace, name), objects) {
		switch {
		case r.GetName() == name:
			root = r
		case r.role == loader.Leaf:
			leaves = append(leaves, r)
		}
	}
	return root, leaves
}

// rootsOf returns the roots to whose families an object belongs.
func (k *kind) rootsOf(r *entry) []rootKey {
	if r.role != loader.Leaf {
		return []rootKey{k.rootKey(r.GetNamespace(), r.GetName())}
	}
	if name, _ := loader.Owner(r, k.Type); name != "" {
		return []rootKey{k.rootKey(r.GetNamespace(), name)}
	}
	var keys []rootKey
	for _, other := range k.find(familyIndex, key.Label(r.GetNamespace(), r.GetLabels()[workloadv1alpha1.OwnedByLabel])) {
		if other.role == loader.Root {
			keys = append(keys, k.rootKey(r.GetNamespace(), other.GetName()))
		}
	}
	return keys
}

// kindOf returns the cache of a type, and whether it is filled. It is nil if the type is not
// served.
func (c *Controller) kindOf(resource schema.GroupResource) (k *kind, filled bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	k = c.kinds[resource]
	return k, k != nil && k.HasSynced()
}

// allKinds returns all divided types, and whether the list of types is complete.
func (c *Controller) allKinds() ([]*kind, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Values(c.kinds)), c.typesKnown
}

// seenKinds returns all divided types, including those whose objects are still being read. A leaf
// that is found there exists. If none is found, that proves nothing.
func (c *Controller) seenKinds() []*kind {
	kinds, _ := c.allKinds()
	return kinds
}

// filledKinds returns the types whose objects were read, and whether these are all types.
func (c *Controller) filledKinds() (kinds []*kind, all bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all = c.typesKnown
	for _, k := range c.kinds {
		if k.HasSynced() {
			kinds = append(kinds, k)
		} else {
			all = false
		}
	}
	return kinds, all
}
