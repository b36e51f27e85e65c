package controller

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata/metadatainformer"
	toolscache "k8s.io/client-go/tools/cache"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

const (
	ingressKind = "Ingress"
	// selectorIndex contains the Services by a pod label that they select.
	selectorIndex = "selector"
)

// coreKinds are the follower types that every kcp serves. If onlyMetadata is true, the controller
// reads only the metadata.
var coreKinds = map[string]struct {
	resource     string
	onlyMetadata bool
}{
	splitter.KindConfigMap: {"configmaps", true}, splitter.KindSecret: {"secrets", true},
	splitter.KindServiceAccount: {"serviceaccounts", false}, splitter.KindService: {"services", false},
	splitter.KindClaim: {"persistentvolumeclaims", false},
}

// isFollower reports whether objects of a type go to where they are needed, and are not divided.
func isFollower(resource schema.GroupResource) bool {
	for _, core := range coreKinds {
		if resource == (schema.GroupResource{Resource: core.resource}) {
			return true
		}
	}
	return resource == loader.Ingresses
}

// followers is the cache of one type of follower.
type followers struct {
	resource schema.GroupVersionResource
	informer toolscache.SharedIndexInformer
	cancel   context.CancelFunc
	done     chan struct{}
}

// cacheFollowers creates the caches of the follower types that every kcp serves.
func (c *Controller) cacheFollowers() error {
	for kind, core := range coreKinds {
		resource := corev1.SchemeGroupVersion.WithResource(core.resource)
		f, err := c.newFollowers(resource, kind, core.onlyMetadata)
		if err != nil {
			return err
		}
		c.followers[kind] = f
	}
	return nil
}

func (c *Controller) newFollowers(resource schema.GroupVersionResource, kind string, onlyMetadata bool) (*followers, error) {
	f := &followers{resource: resource, done: make(chan struct{})}
	indexers := toolscache.Indexers{needIndex: followerIndex(followerNeeds), selectorIndex: followerIndex(selectorKeys), clusterIndex: followerIndex(followedClusters),
		referenceIndex: followerIndex(followerRefs), toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc}
	if onlyMetadata {
		f.informer = metadatainformer.NewFilteredMetadataInformer(c.metadata, resource, metav1.NamespaceAll, 0, indexers, nil).Informer()
	} else {
		f.informer = dynamicinformer.NewFilteredDynamicInformer(c.dynamic, resource, metav1.NamespaceAll, 0, indexers, nil).Informer()
	}
	err := f.informer.SetTransform(func(object any) (any, error) {
		switch o := object.(type) {
		case *metav1.PartialObjectMetadata:
			return newFollower(fromMetadata(o, resource.GroupVersion().String(), kind)), nil
		case *unstructured.Unstructured:
			return newFollower(o), nil
		}
		return object, nil
	})
	if err != nil {
		return nil, err
	}
	if err := c.watched(f.informer); err != nil {
		return nil, err
	}
	_, err = f.informer.AddEventHandler(handler(c.followerChanged))
	return f, err
}

// coreFollowers returns the current follower caches.
func (c *Controller) coreFollowers() []*followers {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Values(c.followers))
}

// keepIngresses watches Ingresses while they are served.
func (c *Controller) keepIngresses(ctx context.Context, crds []*apiextensionsv1.CustomResourceDefinition) {
	served := slices.ContainsFunc(crds, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd.Spec.Group == loader.Ingresses.Group && crd.Spec.Names.Plural == loader.Ingresses.Resource && loader.IsServed(crd)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	running := c.followers[ingressKind]
	switch {
	case served && running == nil:
		f, err := c.newFollowers(networkingv1.SchemeGroupVersion.WithResource(loader.Ingresses.Resource), ingressKind, false)
		if err != nil {
			c.config.Logger.Error("watching ingresses", "err", err)
			return
		}
		c.followers[ingressKind] = f
		f.run(ctx)
	case !served && running != nil:
		delete(c.followers, ingressKind)
		running.cancel() // Do not wait for its end: its handlers may wait for the lock.
	}
}

func (f *followers) run(ctx context.Context) {
	ctx, f.cancel = context.WithCancel(ctx)
	go func() {
		defer close(f.done)
		f.informer.RunWithContext(ctx)
	}()
}

func (f *followers) stop() {
	f.cancel()
	<-f.done
}

func followerIndex(keys func(*follower) []string) toolscache.IndexFunc {
	return func(object any) ([]string, error) {
		if f, ok := object.(*follower); ok {
			return keys(f), nil
		}
		return nil, nil
	}
}

func followerNeeds(f *follower) []string { return needIndexKeys(f.GetNamespace(), f.needs) }

// followerRefs returns the names to which an Ingress refers.
func followerRefs(f *follower) []string { return refIndexKeys(f.GetNamespace(), f.refs) }

// selectorKeys returns the key of one label in the selector of a Service. A pod that matches the
// selector has every label in it, so one label is enough.
func selectorKeys(f *follower) []string {
	for _, name := range slices.Sorted(maps.Keys(f.selector)) {
		return []string{podKey(f.GetNamespace(), name, f.selector[name])}
	}
	return nil
}

// followedClusters returns the clusters to which an object was sent because it is needed there.
// It also returns those to which it is no longer sent, but whose syncers still have a finalizer
// on it.
func followedClusters(f *follower) []string {
	return append(workloadv1alpha1.Follows(f.GetAnnotations()), heldAfter(f)...)
}

// heldAfter returns the clusters whose syncers have a finalizer on an object that is no longer
// sent there.
func heldAfter(object metav1.Object) []string {
	targets := workloadv1alpha1.Targets(object.GetLabels())
	var held []string
	for _, finalizer := range object.GetFinalizers() {
		if name, ok := strings.CutPrefix(finalizer, workloadv1alpha1.FinalizerPrefix); ok && !slices.Contains(targets, name) {
			held = append(held, name)
		}
	}
	return held
}

// follower returns a follower, or nil if it does not exist.
func (c *Controller) follower(key needKey) *follower {
	f := c.followersOf(key.Kind)
	if f == nil {
		return nil
	}
	object, _, _ := f.informer.GetIndexer().GetByKey(nameKey(key.Namespace, key.Name))
	out, _ := object.(*follower)
	return out
}

func (c *Controller) followersOf(kind string) *followers {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.followers[kind]
}

func (f *followers) find(index, key string) []*follower {
	if f == nil {
		return nil
	}
	objects, _ := f.informer.GetIndexer().ByIndex(index, key)
	out := make([]*follower, 0, len(objects))
	for _, object := range objects {
		if o, ok := object.(*follower); ok {
			out = append(out, o)
		}
	}
	return out
}

// followerChanged queues a follower and what its change affects: the objects that it needs or
// needed before, the clusters in which it is or was, and roots.
func (c *Controller) followerChanged(before, now any) {
	var versions []*follower
	for _, object := range []any{before, now} {
		if f, ok := object.(*follower); ok {
			versions = append(versions, f)
		}
	}
	if len(versions) == 0 {
		return
	}
	key, needs := versions[0].key(), map[splitter.Need]bool{}
	if now != nil {
		c.follows.Add(key)
	}
	for _, f := range versions {
		for _, need := range f.needs {
			need.Optional = false
			needs[need] = true
		}
		for _, name := range followedClusters(f) {
			c.removals.Add(name)
		}
	}
	for need := range needs {
		c.follows.Add(keyOfNeed(key.Namespace, need))
	}
	kinds, _ := c.filledKinds()
	c.producersOf(kinds, key.Namespace, slices.Collect(maps.Keys(needs)))
	switch key.Kind {
	case splitter.KindClaim:
		c.rootsNaming(kinds, key)
	case splitter.KindService:
		c.ingressesNaming(key)
		c.referrersOf(kinds, key.Namespace, key.Name)
		c.selectorsOf(kinds, versions)
	}
}

// selectorsOf queues the roots that select one of the versions of a Service.
func (c *Controller) selectorsOf(kinds []*kind, versions []*follower) {
	for _, k := range kinds {
		for _, root := range k.find(aboutIndex, versions[0].GetNamespace()) {
			selects := func(f *follower) bool { return root.services.Matches(f.labels) }
			if root.services != nil && slices.ContainsFunc(versions, selects) {
				c.addRoots(k, root)
			}
		}
	}
}

// producersOf queues the roots that produce a needed object, and the roots to which these refer.
func (c *Controller) producersOf(kinds []*kind, namespace string, needs []splitter.Need) {
	for _, key := range needIndexKeys(namespace, needs) {
		for _, k := range kinds {
			for _, root := range k.find(productIndex, key) {
				c.addRoots(k, root)
				c.referredBy(kinds, root)
			}
		}
	}
}

// referredBy queues the roots to which another root refers.
func (c *Controller) referredBy(kinds []*kind, root *entry) {
	for _, k := range kinds {
		for _, ref := range root.refs {
			if to := k.get(root.GetNamespace(), ref.Name); to != nil && to.role == loader.Root && ref.Is(k.GVK.GroupKind()) {
				c.addRoots(k, to)
			}
		}
	}
}

// rootsNaming queues the roots whose leaves need an object.
func (c *Controller) rootsNaming(kinds []*kind, key needKey) {
	for _, k := range kinds {
		for _, leaf := range k.find(needIndex, key.String()) {
			for _, root := range k.rootsOf(leaf) {
				c.roots.Add(root)
			}
		}
	}
}

func (c *Controller) ingressesNaming(key needKey) {
	for _, f := range c.followersOf(ingressKind).find(needIndex, key.String()) {
		c.follows.Add(f.key())
	}
}

// neededBy returns all objects that a leaf needs: those to which it refers, and the Services of
// its pods.
func (c *Controller) neededBy(leaf *entry) []needKey {
	return append(keysOfNeeds(leaf.GetNamespace(), leaf.needs), c.servicesOf(leaf.GetNamespace(), leaf.pods)...)
}

// servicesOf returns the Services that send traffic to pods.
func (c *Controller) servicesOf(namespace string, pods []labels.Labels) []needKey {
	var keys []needKey
	services := c.followersOf(splitter.KindService)
	for _, pod := range pods {
		for name, value := range asSet(pod) {
			for _, s := range services.find(selectorIndex, podKey(namespace, name, value)) {
				if labels.SelectorFromSet(s.selector).Matches(pod) {
					keys = append(keys, s.key())
				}
			}
		}
	}
	return keys
}

func asSet(pod labels.Labels) labels.Set {
	set, _ := pod.(labels.Set)
	return set
}
