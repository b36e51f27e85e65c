package follower

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata/metadatainformer"
	toolscache "k8s.io/client-go/tools/cache"

	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/cache"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// The indexes of a cache of followers.
const (
	// needIndex finds the followers that need an object.
	needIndex = "need"
	// selectorIndex finds the Services by a pod label that they select.
	selectorIndex = "selector"
	// clusterIndex finds the followers that are in a cluster.
	clusterIndex = "cluster"
	// referenceIndex finds the Ingresses that refer to a name in a namespace.
	referenceIndex = "reference"
)

func indexers() toolscache.Indexers {
	return toolscache.Indexers{
		needIndex:                 cache.IndexBy(func(f *Object) []string { return key.Needs(f.GetNamespace(), f.Needs) }),
		selectorIndex:             cache.IndexBy(selectorKeys),
		clusterIndex:              cache.IndexBy((*Object).Clusters),
		referenceIndex:            cache.IndexBy(func(f *Object) []string { return key.References(f.GetNamespace(), f.refs) }),
		toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc,
	}
}

// selectorKeys returns the key of one label in the selector of a Service. A pod that matches the
// selector has every label in it, so one label is enough.
func selectorKeys(f *Object) []string {
	for _, name := range slices.Sorted(maps.Keys(f.selector)) {
		return []string{key.Pod(f.GetNamespace(), name, f.selector[name])}
	}
	return nil
}

// objects is the cache of one type of follower.
type objects struct {
	*cache.Cache
	resource schema.GroupVersionResource
}

func (o *objects) find(index, key string) []*Object {
	if o == nil {
		return nil
	}
	return cache.Find[Object](o, index, key)
}

// newObjects creates the cache of a type. Nothing fills it yet.
func (f *Followers) newObjects(resource schema.GroupVersionResource, kind string, onlyMetadata bool) (*objects, error) {
	var informer toolscache.SharedIndexInformer
	if onlyMetadata {
		informer = metadatainformer.NewFilteredMetadataInformer(f.config.Metadata, resource, metav1.NamespaceAll, 0, indexers(), nil).Informer()
	} else {
		informer = dynamicinformer.NewFilteredDynamicInformer(f.config.Dynamic, resource, metav1.NamespaceAll, 0, indexers(), nil).Informer()
	}
	err := informer.SetTransform(func(object any) (any, error) {
		switch o := object.(type) {
		case *metav1.PartialObjectMetadata:
			return newObject(fromMetadata(o, resource.GroupVersion().String(), kind)), nil
		case *unstructured.Unstructured:
			return newObject(o), nil
		}
		return object, nil
	})
	if err != nil {
		return nil, err
	}
	c, err := cache.New(informer, f.config.Logger)
	if err != nil {
		return nil, err
	}
	_, err = informer.AddEventHandler(cache.Changes(f.changed))
	return &objects{Cache: c, resource: resource}, err
}

// newCoreObjects creates the caches of the follower types that every kcp serves.
func (f *Followers) newCoreObjects() error {
	for kind, core := range coreKinds {
		o, err := f.newObjects(corev1.SchemeGroupVersion.WithResource(core.resource), kind, core.onlyMetadata)
		if err != nil {
			return err
		}
		f.caches[kind] = o
	}
	return nil
}

// ServeIngresses watches Ingresses until ctx ends or the kcp no longer serves them.
func (f *Followers) ServeIngresses(ctx context.Context, served bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	running := f.caches[KindIngress]
	switch {
	case served && running == nil:
		o, err := f.newObjects(networkingv1.SchemeGroupVersion.WithResource(loader.Ingresses.Resource), KindIngress, false)
		if err != nil {
			f.config.Logger.Error("watching ingresses", "err", err)
			return
		}
		f.caches[KindIngress] = o
		o.Start(ctx)
	case !served && running != nil:
		delete(f.caches, KindIngress)
		running.Cancel() // Do not wait for its end: its handlers may wait for the lock.
	}
}

// StopIngresses ends the watch of Ingresses, if there is one, and waits for its end.
func (f *Followers) StopIngresses() {
	f.mu.Lock()
	running := f.caches[KindIngress]
	delete(f.caches, KindIngress)
	f.mu.Unlock()
	if running != nil {
		running.Stop()
	}
}

// all returns the current caches.
func (f *Followers) all() []*objects {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return slices.Collect(maps.Values(f.caches))
}

// of returns the cache of a kind, or nil if the kcp does not serve it.
func (f *Followers) of(kind string) *objects {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.caches[kind]
}

// Get returns a follower, or nil if it does not exist.
func (f *Followers) Get(k key.Follower) *Object {
	o := f.of(k.Kind)
	if o == nil {
		return nil
	}
	return cache.Get[Object](o, key.Name(k.Namespace, k.Name))
}

// IsAnyIn reports whether a follower is in a cluster.
func (f *Followers) IsAnyIn(cluster string) bool {
	return slices.ContainsFunc(f.all(), func(o *objects) bool { return len(o.find(clusterIndex, cluster)) > 0 })
}

// In returns the Services, ServiceAccounts and Ingresses in a namespace that match a query. A
// Service matches by its labels. The others match by their needs.
func (f *Followers) In(namespace string, q loader.Query) []*Object {
	var out []*Object
	if q.Services != nil {
		for _, service := range f.of(splitter.KindService).find(toolscache.NamespaceIndex, namespace) {
			if q.Services.Matches(service.Labels) {
				out = append(out, service)
			}
		}
	}
	for _, kind := range []string{splitter.KindServiceAccount, KindIngress} {
		for _, need := range key.Needs(namespace, q.Needs) {
			out = append(out, f.of(kind).find(needIndex, need)...)
		}
	}
	return out
}
