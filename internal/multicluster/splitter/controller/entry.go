package controller

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/loader"
	"rik.dev/rik/internal/multicluster/terminal"
)

// entry is the cached part of an object of a divided type. It is immutable.
type entry struct {
	// Unstructured is the object. A root is complete. A leaf has metadata, replicas and status.
	// Any other object has only metadata.
	*unstructured.Unstructured
	role loader.Role
	// expires is when the time to live of a finished object ends. It is zero if it never ends, or
	// is not known yet. It is always zero for a leaf, because the time of its root counts.
	expires time.Time
	// digest is the hash of the spec of a root or leaf.
	digest string
	// needs and pods of a leaf are the objects that it needs and the labels of its pods.
	needs []splitter.Need
	pods  []labels.Labels
	// refs of a root are the objects to which it refers. selector selects the pods that it
	// concerns, or is nil. pods of a root are the labels of the pods of its leaves.
	refs     []splitter.Reference
	selector labels.Selector
	// services of a root selects the Services that it concerns, or is nil. products are the
	// objects that are made for it in a cluster. needs of a root are those of its leaves, but
	// only leaves cause these objects to be sent.
	services labels.Selector
	products []splitter.Need
}

// newEntry returns the entry of an object. It takes ownership of the object.
func newEntry(object *unstructured.Unstructured, t loader.Type) (*entry, error) {
	forget(object)
	r := &entry{Unstructured: object, role: loader.RoleOf(object, t)}
	if r.role != loader.Leaf {
		r.expires, _ = terminal.Expires(object, time.Now())
	}
	if r.role == loader.Targeted {
		delete(object.Object, "spec")
		delete(object.Object, "status")
		return r, nil
	}
	var err error
	if r.digest, err = splitter.Digest(object, t.Path); err != nil {
		return nil, err
	}
	if r.role == loader.Root {
		r.refs, r.pods, r.products = splitter.References(object), splitter.PodLabels(object), t.Rules.Products(object)
		r.selector, r.services = t.Rules.Selector(object, splitter.KindPod), t.Rules.Selector(object, splitter.KindService)
		r.needs, _ = t.Needs(object)
		return r, nil
	}
	// If the needs cannot be read, the root has an error, and the pass of the root reports it.
	r.needs, _ = t.Needs(object)
	r.pods = splitter.PodLabels(object)
	r.Unstructured, err = slim(object, t.Path)
	return r, err
}

// forget removes metadata that the controller does not read.
func forget(object *unstructured.Unstructured) {
	object.SetManagedFields(nil)
	if notes := object.GetAnnotations(); notes["kubectl.kubernetes.io/last-applied-configuration"] != "" {
		delete(notes, "kubectl.kubernetes.io/last-applied-configuration")
		object.SetAnnotations(notes)
	}
}

// slim returns an object without its spec, except for the replicas.
func slim(object *unstructured.Unstructured, path splitter.ScalePath) (*unstructured.Unstructured, error) {
	out := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(), "metadata": object.Object["metadata"],
	}}
	if status, ok := object.Object["status"]; ok {
		out.Object["status"] = status
	}
	if replicas, ok := splitter.Replicas(object, path); ok {
		if err := unstructured.SetNestedField(out.Object, int64(replicas), path.SpecPath()...); err != nil {
			return nil, fmt.Errorf("keeping the replicas of %s: %w", object.GetName(), err)
		}
	}
	return out, nil
}

// deleting returns the entry of an object that was deleted, but may still exist for a while.
func (r *entry) deleting(now metav1.Time) *entry {
	out := *r
	out.Unstructured = r.DeepCopy()
	out.SetDeletionTimestamp(&now)
	return &out
}

// sameNeeds reports whether two entries of a leaf need the same objects in the same cluster.
func sameNeeds(a, b *entry) bool {
	return a.role == b.role && slices.Equal(a.needs, b.needs) && samePods(a.pods, b.pods) &&
		a.GetLabels()[workloadv1alpha1.ClusterLabel] == b.GetLabels()[workloadv1alpha1.ClusterLabel]
}

func samePods(a, b []labels.Labels) bool {
	return slices.EqualFunc(a, b, func(x, y labels.Labels) bool {
		return maps.Equal(x.(labels.Set), y.(labels.Set))
	})
}
