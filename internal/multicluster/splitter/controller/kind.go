package controller

import (
	"context"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	toolscache "k8s.io/client-go/tools/cache"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
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

	informer toolscache.SharedIndexInformer
	// written contains the writes that the informer has not delivered yet.
	written *writes
	cancel  context.CancelFunc
	done    chan struct{}
}

// newKind creates the cache of a type. run fills it.
func newKind(client dynamic.Interface, t loader.Type) (*kind, error) {
	k := &kind{Type: t, written: newWrites(), done: make(chan struct{})}
	k.informer = dynamicinformer.NewFilteredDynamicInformer(client, t.GVR(), metav1.NamespaceAll, 0, toolscache.Indexers{
		familyIndex: k.byEntry(k.familyKeys), rootIndex: k.byEntry(rootKeys), needIndex: k.byEntry(needKeys),
		podIndex: k.byEntry(podKeys), clusterIndex: k.byEntry(clusterKeys), placeIndex: k.byEntry(placeKeys),
		referenceIndex: k.byEntry(referenceKeys), useIndex: k.byEntry(useKeys), productIndex: k.byEntry(productKeys), aboutIndex: k.byEntry(aboutKeys),
	}, nil).Informer()
	return k, k.informer.SetTransform(k.transform)
}

func (k *kind) transform(object any) (any, error) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		return newEntry(u, k.Type)
	}
	return object, nil
}

func (k *kind) byEntry(keys func(*entry) []string) toolscache.IndexFunc {
	return func(object any) ([]string, error) {
		if r, ok := object.(*entry); ok {
			return keys(r), nil
		}
		return nil, nil
	}
}

// run fills the cache and updates it until ctx ends.
func (k *kind) run(ctx context.Context) {
	ctx, k.cancel = context.WithCancel(ctx)
	go func() {
		defer close(k.done)
		k.informer.RunWithContext(ctx)
	}()
}

// stop stops run and waits for its end.
func (k *kind) stop() {
	k.cancel()
	<-k.done
}

// familyKeys returns the keys under which an object is indexed: the name of the root or, for a
// leaf without a controller, the label of the root.
func (k *kind) familyKeys(r *entry) []string {
	byLabel := func(value string) string { return labelKey(r.GetNamespace(), value) }
	switch r.role {
	case loader.Leaf:
		if name, _ := loader.Owner(r, k.Type); name != "" {
			return []string{nameKey(r.GetNamespace(), name)}
		}
		return []string{byLabel(r.GetLabels()[workloadv1alpha1.OwnedByLabel])}
	default:
		return []string{nameKey(r.GetNamespace(), r.GetName()), byLabel(splitter.OwnerLabel(r.GetName()))}
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
	return needIndexKeys(r.GetNamespace(), r.needs)
}

func useKeys(r *entry) []string {
	if r.role != loader.Root {
		return nil
	}
	return needIndexKeys(r.GetNamespace(), r.needs)
}

func productKeys(r *entry) []string { return needIndexKeys(r.GetNamespace(), r.products) }

func podKeys(r *entry) []string {
	var keys []string
	if r.role != loader.Leaf {
		return nil
	}
	for _, pod := range r.pods {
		for name, value := range asSet(pod) {
			keys = append(keys, podKey(r.GetNamespace(), name, value))
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
	return append(keys, heldAfter(r)...)
}

func placeKeys(r *entry) []string {
	if cluster := r.GetLabels()[workloadv1alpha1.ClusterLabel]; r.role == loader.Leaf && cluster != "" {
		return []string{nameKey(r.GetNamespace(), cluster)}
	}
	return nil
}

func referenceKeys(r *entry) []string { return refIndexKeys(r.GetNamespace(), r.refs) }

func aboutKeys(r *entry) []string {
	if r.selector != nil || r.services != nil {
		return []string{r.GetNamespace()}
	}
	return nil
}

// get returns an object by namespace and name, or nil if it does not exist.
func (k *kind) get(namespace, name string) *entry {
	object, _, _ := k.informer.GetIndexer().GetByKey(nameKey(namespace, name))
	r, _ := object.(*entry)
	return r
}

// find returns the objects under a key of an index.
func (k *kind) find(index, key string) []*entry {
	// ByIndex fails only if the index does not exist, and these indexes do.
	objects, _ := k.informer.GetIndexer().ByIndex(index, key)
	records := make([]*entry, 0, len(objects))
	for _, object := range objects {
		if r, ok := object.(*entry); ok {
			records = append(records, r)
		}
	}
	return records
}

// family returns the object with the name of a root, and the objects that may be its leaves. Both
// include the latest writes of this controller.
func (k *kind) family(namespace, name string) (root *entry, leaves []*entry) {
	objects := map[string]*entry{}
	for _, key := range []string{nameKey(namespace, name), labelKey(namespace, splitter.OwnerLabel(name))} {
		for _, r := range k.find(familyIndex, key) {
			objects[r.GetName()] = r
		}
	}
	for _, r := range k.written.over(nameKey(namespace, name), objects) {
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
	for _, other := range k.find(familyIndex, labelKey(r.GetNamespace(), r.GetLabels()[workloadv1alpha1.OwnedByLabel])) {
		if other.role == loader.Root {
			keys = append(keys, k.rootKey(r.GetNamespace(), other.GetName()))
		}
	}
	return keys
}

// kindOf returns the cache of a type, and whether it is filled. It is nil if the type is not
// served.
func (c *Controller) kindOf(key rootKey) (k *kind, filled bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	k = c.kinds[key.GroupResource]
	return k, k != nil && k.informer.HasSynced()
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
		if k.informer.HasSynced() {
			kinds = append(kinds, k)
		} else {
			all = false
		}
	}
	return kinds, all
}
