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

// entry is what is kept of an object of a divided type. It is never changed.
type entry struct {
	// Unstructured is the object: of a root all, of a leaf the metadata, the replicas
	// and the status, of others the metadata.
	*unstructured.Unstructured
	role loader.Role
	// expires is when a finished object's time to live is over; zero: never, or not yet known.
	// A leaf has none: its root's counts.
	expires time.Time
	// digest of roots and leaves stands for their specs.
	digest string
	// needs and pods of a leaf: what it names, and the labels of its pods.
	needs []splitter.Need
	pods  []labels.Labels
	// refs of a root are what it refers to, and selector the pods that it is about, or nil. pods of
	// a root are those that its leaves make.
	refs     []splitter.Reference
	selector labels.Selector
	// services of a root are the Services that it is about, or nil, and products what is made for
	// it in a cluster. needs of a root are those of its leaves, and do not have these sent anywhere.
	services labels.Selector
	products []splitter.Need
}

// newEntry keeps what is needed of an object, which it takes over.
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
	// What a leaf names and cannot be read is its root's mistake, which is told there.
	r.needs, _ = t.Needs(object)
	r.pods = splitter.PodLabels(object)
	r.Unstructured, err = slim(object, t.Path)
	return r, err
}

// forget drops what nobody here reads.
func forget(object *unstructured.Unstructured) {
	object.SetManagedFields(nil)
	if notes := object.GetAnnotations(); notes["kubectl.kubernetes.io/last-applied-configuration"] != "" {
		delete(notes, "kubectl.kubernetes.io/last-applied-configuration")
		object.SetAnnotations(notes)
	}
}

// slim is an object without its spec, but with its replicas.
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

// deleting is an entry of an object that was deleted, and perhaps is there for a while.
func (r *entry) deleting(now metav1.Time) *entry {
	out := *r
	out.Unstructured = r.DeepCopy()
	out.SetDeletionTimestamp(&now)
	return &out
}

// sameNeeds says whether two entries of a leaf ask for the same in the same cluster.
func sameNeeds(a, b *entry) bool {
	return a.role == b.role && slices.Equal(a.needs, b.needs) && samePods(a.pods, b.pods) &&
		a.GetLabels()[workloadv1alpha1.ClusterLabel] == b.GetLabels()[workloadv1alpha1.ClusterLabel]
}

func samePods(a, b []labels.Labels) bool {
	return slices.EqualFunc(a, b, func(x, y labels.Labels) bool {
		return maps.Equal(x.(labels.Set), y.(labels.Set))
	})
}

// follower is what is kept of an object that leaves need.
type follower struct {
	// Unstructured has of the labels the targets, of the annotations what tells about
	// targets, and of claims the phase.
	*unstructured.Unstructured
	// needs of its own, and the pods that it selects.
	needs    []splitter.Need
	selector map[string]string
	// labels of a Service, by which others select it, and refs of an Ingress.
	labels labels.Set
	refs   []splitter.Reference
}

// newFollower keeps what is needed of an object, which it takes over.
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

// fromMetadata is an object of which only the metadata was asked for.
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

// body is a merge patch for one version of an object.
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
