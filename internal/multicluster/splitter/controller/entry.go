package controller

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// follower is the cached part of an object that leaves need.
type follower struct {
	// Unstructured contains the target labels, the annotations about targets and, for a claim,
	// the phase.
	*unstructured.Unstructured
	// needs are the objects that it needs itself. selector selects the pods of a Service.
	needs    []splitter.Need
	selector map[string]string
	// labels are those of a Service, by which roots select it. refs are those of an Ingress.
	labels labels.Set
	refs   []splitter.Reference
}

func (f *follower) key() needKey { return needKey{f.GetKind(), f.GetNamespace(), f.GetName()} }

// newFollower returns the follower of an object. It takes ownership of the object.
func newFollower(object *unstructured.Unstructured) *follower {
	f := &follower{}
	f.needs, _ = splitter.Needs(object)
	if object.GetKind() == splitter.KindService {
		f.selector, f.labels = splitter.Selector(object), maps.Clone(object.GetLabels())
	}
	if object.GetKind() == ingressKind {
		f.refs = splitter.References(object)
	}
	set, notes := object.GetLabels(), object.GetAnnotations()
	maps.DeleteFunc(set, func(name, _ string) bool {
		return name != workloadv1alpha1.ClusterLabel && !strings.HasPrefix(name, workloadv1alpha1.TargetLabelPrefix)
	})
	maps.DeleteFunc(notes, func(name, value string) bool {
		return name != workloadv1alpha1.FollowsAnnotation && name != neededByAnnotation &&
			!strings.HasPrefix(name, workloadv1alpha1.StatusAnnotationPrefix) && !isUntakenNote(name, value)
	})
	kept := &unstructured.Unstructured{Object: map[string]any{"apiVersion": object.GetAPIVersion(), "kind": object.GetKind()}}
	kept.SetName(object.GetName())
	kept.SetNamespace(object.GetNamespace())
	kept.SetUID(object.GetUID())
	kept.SetResourceVersion(object.GetResourceVersion())
	kept.SetFinalizers(object.GetFinalizers())
	kept.SetDeletionTimestamp(object.GetDeletionTimestamp())
	kept.SetLabels(set)
	kept.SetAnnotations(notes)
	if phase, found, err := unstructured.NestedString(object.Object, "status", "phase"); found && err == nil {
		kept.Object["status"] = map[string]any{"phase": phase}
	}
	f.Unstructured = kept
	return f
}

// fromMetadata returns an object of which only the metadata was requested.
func fromMetadata(object *metav1.PartialObjectMetadata, apiVersion, kind string) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	out.SetName(object.Name)
	out.SetNamespace(object.Namespace)
	out.SetUID(object.UID)
	out.SetResourceVersion(object.ResourceVersion)
	out.SetFinalizers(object.Finalizers)
	out.SetDeletionTimestamp(object.DeletionTimestamp)
	out.SetLabels(object.Labels)
	out.SetAnnotations(object.Annotations)
	return out
}

// body returns a merge patch that applies only to one resource version of an object.
func body(object metav1.Object, metadata map[string]any, rest map[string]any) ([]byte, error) {
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["uid"] = string(object.GetUID())
	metadata["resourceVersion"] = object.GetResourceVersion()
	out := maps.Clone(rest)
	if out == nil {
		out = map[string]any{}
	}
	out["metadata"] = metadata
	return json.Marshal(out)
}
