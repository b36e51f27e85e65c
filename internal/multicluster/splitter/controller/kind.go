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
	// familyIndex has a root with its leaves.
	familyIndex = "family"
	// rootIndex has the roots of a namespace.
	rootIndex = "root"
	// needIndex has the leaves that name an object, and useIndex the roots.
	needIndex = "need"
	useIndex  = "use"
	// productIndex has the roots for which an object is made in a cluster.
	productIndex = "product"
	// podIndex has the leaves that make pods with a label.
	podIndex = "pod"
	// clusterIndex has the leaves of a cluster, and what else its syncer holds.
	clusterIndex = "cluster"
	// referenceIndex has the roots that refer to a name of a namespace.
	referenceIndex = "reference"
	// aboutIndex has the roots of a namespace that are about pods which they select.
	aboutIndex = "about"
	// placeIndex has the leaves of a namespace in a cluster.
	placeIndex = "place"
)

// kind is one type that is divided, with all its objects.
type kind struct {
	loader.Type

	informer toolscache.SharedIndexInformer
	// written are writes that the informer has not shown yet.
	written *writes
	cancel  context.CancelFunc
	done    chan struct{}
}

// newKind makes the cache of a type. It is filled by run.
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

// run fills the cache and keeps it until ctx ends.
func (k *kind) run(ctx context.Context) {
	ctx, k.cancel = context.WithCancel(ctx)
	go func() {
		defer close(k.done)
		k.informer.RunWithContext(ctx)
	}()
}

// stop ends run and waits for it.
func (k *kind) stop() {
	k.cancel()
	<-k.done
}

// familyKeys are under what a root is found with its leaves: its name, and where a leaf
// has no controller, the root's label.
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

func nameKey(namespace, name string) string   { return namespace + "/" + name }
func labelKey(namespace, value string) string { return namespace + "/?" + value }

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
	return keysOf(r.GetNamespace(), r.needs)
}

func useKeys(r *entry) []string {
	if r.role != loader.Root {
		return nil
	}
	return keysOf(r.GetNamespace(), r.needs)
}

func productKeys(r *entry) []string { return keysOf(r.GetNamespace(), r.products) }

func keysOf(namespace string, needs []splitter.Need) []string {
	var keys []string
	for _, n := range needs {
		keys = append(keys, needKey{n.Kind, namespace, n.Name}.String())
	}
	return keys
}

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

func podKey(namespace, name, value string) string { return namespace + "/" + name + "=" + value }

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

func referenceKeys(r *entry) []string {
	var keys []string
	for _, ref := range r.refs {
		keys = append(keys, nameKey(r.GetNamespace(), ref.Name))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func aboutKeys(r *entry) []string {
	if r.selector != nil || r.services != nil {
		return []string{r.GetNamespace()}
	}
	return nil
}

// get is an object by namespace and name; nil if there is none.
func (k *kind) get(namespace, name string) *entry {
	object, _, _ := k.informer.GetIndexer().GetByKey(nameKey(namespace, name))
	r, _ := object.(*entry)
	return r
}

// find are the objects under a key of an index.
func (k *kind) find(index, key string) []*entry {
	// It fails where there is no such index, and there is.
	objects, _ := k.informer.GetIndexer().ByIndex(index, key)
	records := make([]*entry, 0, len(objects))
	for _, object := range objects {
		if r, ok := object.(*entry); ok {
			records = append(records, r)
		}
	}
	return records
}

// family is what has the name of a root, and what may be its leaves, as it was last
// written.
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

// rootsOf are the roots whose family an object is in.
func (k *kind) rootsOf(r *entry) []rootKey {
	key := rootKey{GroupResource: k.GroupResource(), Namespace: r.GetNamespace(), Name: r.GetName()}
	if r.role != loader.Leaf {
		return []rootKey{key}
	}
	if name, _ := loader.Owner(r, k.Type); name != "" {
		key.Name = name
		return []rootKey{key}
	}
	var keys []rootKey
	for _, other := range k.find(familyIndex, labelKey(r.GetNamespace(), r.GetLabels()[workloadv1alpha1.OwnedByLabel])) {
		if other.role == loader.Root {
			key.Name = other.GetName()
			keys = append(keys, key)
		}
	}
	return keys
}

// kindOf is a running type that is filled; nil if it is not served, or not read yet.
func (c *Controller) kindOf(key rootKey) (k *kind, filled bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	k = c.kinds[key.GroupResource]
	return k, k != nil && k.informer.HasSynced()
}

// allKinds are all types that are divided, and whether these are known.
func (c *Controller) allKinds() ([]*kind, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Values(c.kinds)), c.typesKnown
}

// seenKinds are all types that are divided, of which not all objects may be read yet. That
// one is seen says something; that none is says nothing.
func (c *Controller) seenKinds() []*kind {
	kinds, _ := c.allKinds()
	return kinds
}

// filledKinds are all types that are read, and whether these are all that there are.
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

// needKey names an object that others need.
type needKey struct{ Kind, Namespace, Name string }

func (n needKey) String() string { return n.Kind + "/" + n.Namespace + "/" + n.Name }
