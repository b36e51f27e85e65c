package syncer

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// The indexes that find an object whose counterpart has another name.
const (
	// uidIndex finds objects upstream by their UIDs.
	uidIndex = "uid"
	// nameIndex finds objects upstream by their names in the cluster.
	nameIndex = "name"
	// counterpartIndex finds objects downstream by the names of their counterparts.
	counterpartIndex = "counterpart"
)

func upstreamIndexers() cache.Indexers {
	return cache.Indexers{
		uidIndex: indexBy(func(o metav1.Object) string { return string(o.GetUID()) }),
		nameIndex: indexBy(func(o metav1.Object) string {
			return cache.NewObjectName(o.GetNamespace(), workloadv1alpha1.NameInCluster(o)).String()
		}),
	}
}

func downstreamIndexers() cache.Indexers {
	return cache.Indexers{counterpartIndex: indexBy(func(o metav1.Object) string {
		if upstreamUID(o) == "" {
			return ""
		}
		return cache.NewObjectName(o.GetNamespace(), counterpartOf(o)).String()
	})}
}

func indexBy(key func(metav1.Object) string) cache.IndexFunc {
	return func(object any) ([]string, error) {
		if o, ok := object.(*unstructured.Unstructured); ok {
			if k := key(o); k != "" {
				return []string{k}, nil
			}
		}
		return nil, nil
	}
}

// upstreamUID returns the UID of the upstream object of an object downstream, as recorded when it
// was created. It is empty if no syncer created the object.
func upstreamUID(downstream metav1.Object) types.UID {
	return types.UID(downstream.GetAnnotations()[workloadv1alpha1.UpstreamUIDAnnotation])
}

// counterpartOf returns the upstream name of an object downstream, as recorded when it was
// created.
func counterpartOf(downstream metav1.Object) string {
	if name := downstream.GetAnnotations()[workloadv1alpha1.UpstreamNameAnnotation]; name != "" {
		return name
	}
	return downstream.GetName()
}

// upstreamByUID returns an upstream object that is sent to this cluster, or nil if the caches do
// not have it.
func (c *carrier) upstreamByUID(uid types.UID) *unstructured.Unstructured {
	for _, informer := range c.upstream {
		if found := indexed(informer, uidIndex, string(uid)); len(found) > 0 && uid != "" {
			return found[0]
		}
	}
	return nil
}

// nameUpstream returns the name of the upstream object of a downstream object. It uses the
// upstream object with the recorded UID. If the caches do not have it, it uses the recorded name.
func (c *carrier) nameUpstream(downstream metav1.Object) string {
	if up := c.upstreamByUID(upstreamUID(downstream)); up != nil {
		return up.GetName()
	}
	return counterpartOf(downstream)
}

// nameDownstream returns the name of an upstream object in the cluster. up may be nil. An
// existing downstream object keeps its name, even if upstream asks for another one now.
func (c *carrier) nameDownstream(key Key, namespace string, up *unstructured.Unstructured) string {
	found := indexed(c.downstream, counterpartIndex, cache.NewObjectName(namespace, key.Name).String())
	name := ""
	for _, o := range found {
		if c.nameUpstream(o) != key.Name {
			continue
		}
		name = o.GetName()
		if up != nil && upstreamUID(o) == up.GetUID() {
			return name
		}
	}
	switch {
	case name != "":
		return name
	case up != nil:
		return workloadv1alpha1.NameInCluster(up)
	}
	return key.Name
}

// waitingFor returns the upstream objects that want a name in the cluster.
func (c *carrier) waitingFor(upstreamNamespace, name string) []*unstructured.Unstructured {
	var found []*unstructured.Unstructured
	for _, informer := range c.upstream {
		found = append(found, indexed(informer, nameIndex, cache.NewObjectName(upstreamNamespace, name).String())...)
	}
	return found
}

func indexed(informer cache.SharedIndexInformer, index, key string) []*unstructured.Unstructured {
	objects, err := informer.GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil
	}
	out := make([]*unstructured.Unstructured, 0, len(objects))
	for _, o := range objects {
		if u, ok := o.(*unstructured.Unstructured); ok {
			out = append(out, u)
		}
	}
	return out
}

// locate determines the name of the object in the cluster, and reads it from the cache.
func (p *pass) locate() {
	name := p.carrier.nameDownstream(p.key, p.downstreamNamespace(), p.up)
	if name == p.name {
		return
	}
	p.name, p.down, p.downSeen = name, nil, unknown
	if p.down = p.carrier.downstreamObject(p.downstreamNamespace(), name); p.down != nil {
		p.downSeen = cached
	}
}

// takenBy returns the name of another upstream object whose counterpart is the downstream object
// with this name. It is empty if there is none.
func (p *pass) takenBy() string {
	uid := upstreamUID(p.down)
	if uid == "" || p.up != nil && uid == p.up.GetUID() {
		return ""
	}
	if name := p.carrier.nameUpstream(p.down); name != p.key.Name {
		return name
	}
	return ""
}

// isLeaving reports whether another object upstream is leaving the cluster.
func (p *pass) isLeaving(name string) bool {
	other := p.carrier.upstreamObject(Key{Type: p.key.Type, Namespace: p.key.Namespace, Name: name})
	return other == nil || other.GetDeletionTimestamp() != nil || !isTargeted(other, p.identity.Cluster)
}

// otherNames returns another way to resolve a name conflict in the cluster, for a message.
func (p *pass) otherNames() string {
	if p.name == p.key.Name {
		return ""
	}
	return ". Or annotate " + p.name + " in the kcp with " + workloadv1alpha1.NamesAnnotation + "=" + workloadv1alpha1.NamesLeaf + " and delete " + p.key.Name + ", which then gets its own name in the cluster"
}
