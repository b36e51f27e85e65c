package syncer

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// The indexes by which an object is found whose counterpart has another name.
const (
	// uidIndex has objects upstream by their UIDs.
	uidIndex = "uid"
	// nameIndex has objects upstream by what they are called in the cluster.
	nameIndex = "name"
	// counterpartIndex has objects downstream by the names of their counterparts.
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
		if o.GetAnnotations()[workloadv1alpha1.UpstreamUIDAnnotation] == "" {
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

// counterpartOf is the name upstream of an object downstream, as it was noted when it was made.
func counterpartOf(downstream metav1.Object) string {
	if name := downstream.GetAnnotations()[workloadv1alpha1.UpstreamNameAnnotation]; name != "" {
		return name
	}
	return downstream.GetName()
}

// upstreamByUID is an object upstream that is sent to this cluster; nil if none is known.
func (c *carrier) upstreamByUID(uid types.UID) *unstructured.Unstructured {
	for _, informer := range c.upstream {
		if found := indexed(informer, uidIndex, string(uid)); len(found) > 0 && uid != "" {
			return found[0]
		}
	}
	return nil
}

// nameUpstream is the name of the object upstream that one downstream stands for: of the one with
// the UID that it bears, or as it was noted.
func (c *carrier) nameUpstream(downstream metav1.Object) string {
	uid := types.UID(downstream.GetAnnotations()[workloadv1alpha1.UpstreamUIDAnnotation])
	if up := c.upstreamByUID(uid); up != nil {
		return up.GetName()
	}
	return counterpartOf(downstream)
}

// nameDownstream is what an object upstream, which may be nil, is called in the cluster. One that
// is there keeps its name, whatever upstream says by now.
func (c *carrier) nameDownstream(key Key, namespace string, up *unstructured.Unstructured) string {
	found := indexed(c.downstream, counterpartIndex, cache.NewObjectName(namespace, key.Name).String())
	name := ""
	for _, o := range found {
		if c.nameUpstream(o) != key.Name {
			continue
		}
		name = o.GetName()
		if up != nil && o.GetAnnotations()[workloadv1alpha1.UpstreamUIDAnnotation] == string(up.GetUID()) {
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

// waitingFor are the objects upstream that are to have a name in the cluster.
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

// locate finds out what the object is called in the cluster, and takes what the cache has of it.
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

// isAnothers reports whether what has the object's name in the cluster is the counterpart of
// another object upstream.
func (p *pass) isAnothers() bool {
	uid := p.down.GetAnnotations()[workloadv1alpha1.UpstreamUIDAnnotation]
	return uid != "" && (p.up == nil || uid != string(p.up.GetUID())) && p.carrier.nameUpstream(p.down) != p.key.Name
}

// isLeaving reports whether the object upstream whose counterpart has the name is on its way out
// of the cluster.
func (p *pass) isLeaving() bool {
	other := p.carrier.upstreamObject(Key{Type: p.key.Type, Namespace: p.key.Namespace, Name: p.carrier.nameUpstream(p.down)})
	return other == nil || other.GetDeletionTimestamp() != nil || !isTargeted(other, p.identity.Cluster)
}

// otherNames is what else can be done about a name that is taken in the cluster.
func (p *pass) otherNames() string {
	if p.name == p.key.Name {
		return ""
	}
	return ". Or annotate " + p.name + " in the kcp with " + workloadv1alpha1.NamesAnnotation + "=" + workloadv1alpha1.NamesLeaf + " and delete " + p.key.Name + ", which then gets its own name in the cluster"
}
