package follower

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// KindIngress is the kind of the only follower type that a kcp need not serve.
const KindIngress = "Ingress"

// coreKinds are the follower types that every kcp serves. If onlyMetadata is true, only the
// metadata is read.
var coreKinds = map[string]struct {
	resource     string
	onlyMetadata bool
}{
	splitter.KindConfigMap: {"configmaps", true}, splitter.KindSecret: {"secrets", true},
	splitter.KindServiceAccount: {"serviceaccounts", false}, splitter.KindService: {"services", false},
	splitter.KindClaim: {"persistentvolumeclaims", false},
}

// Is reports whether objects of a type are followers.
func Is(resource schema.GroupResource) bool {
	for _, core := range coreKinds {
		if resource == (schema.GroupResource{Resource: core.resource}) {
			return true
		}
	}
	return resource == loader.Ingresses
}

// Object is the cached part of a follower. It is immutable.
type Object struct {
	// Unstructured contains the target labels, the annotations about targets and, for a claim,
	// the phase.
	*unstructured.Unstructured
	// Needs are the objects that it needs itself.
	Needs []splitter.Need
	// Labels are those of a Service, by which roots select it.
	Labels labels.Set
	// selector selects the pods of a Service. refs are the references of an Ingress.
	selector map[string]string
	refs     []splitter.Reference
}

// newObject returns the cached part of an object. It takes ownership of the object.
func newObject(object *unstructured.Unstructured) *Object {
	f := &Object{}
	f.Needs, _ = splitter.Needs(object)
	if object.GetKind() == splitter.KindService {
		f.selector, f.Labels = splitter.Selector(object), maps.Clone(object.GetLabels())
	}
	if object.GetKind() == KindIngress {
		f.refs = splitter.References(object)
	}
	set, notes := object.GetLabels(), object.GetAnnotations()
	maps.DeleteFunc(set, func(name, _ string) bool {
		return name != workloadv1alpha1.ClusterLabel && !strings.HasPrefix(name, workloadv1alpha1.TargetLabelPrefix)
	})
	maps.DeleteFunc(notes, func(name, value string) bool {
		return name != workloadv1alpha1.FollowsAnnotation && name != neededByAnnotation &&
			!strings.HasPrefix(name, workloadv1alpha1.StatusAnnotationPrefix) && !isNotSynced(name, value)
	})
	kept := &unstructured.Unstructured{Object: map[string]any{"apiVersion": object.GetAPIVersion(), "kind": object.GetKind()}}
	copyMetadata(kept, object)
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
	copyMetadata(out, object)
	return out
}

// copyMetadata copies the metadata that the package reads.
func copyMetadata(to *unstructured.Unstructured, from metav1.Object) {
	to.SetName(from.GetName())
	to.SetNamespace(from.GetNamespace())
	to.SetUID(from.GetUID())
	to.SetResourceVersion(from.GetResourceVersion())
	to.SetFinalizers(from.GetFinalizers())
	to.SetDeletionTimestamp(from.GetDeletionTimestamp())
	to.SetLabels(from.GetLabels())
	to.SetAnnotations(from.GetAnnotations())
}

// Key returns the key of the follower.
func (f *Object) Key() key.Follower {
	return key.Follower{Kind: f.GetKind(), Namespace: f.GetNamespace(), Name: f.GetName()}
}

// Clusters returns the clusters to which the follower was sent because it is needed there. It also
// returns those to which it is no longer sent, but whose syncers still have a finalizer on it.
func (f *Object) Clusters() []string {
	return append(workloadv1alpha1.Follows(f.GetAnnotations()), splitter.HeldAfter(f)...)
}

// leaving returns the clusters to which the follower was sent and where nothing needs it.
func (f *Object) leaving(wanted []string) []string {
	var leaving []string
	for _, name := range workloadv1alpha1.Follows(f.GetAnnotations()) {
		if !slices.Contains(wanted, name) {
			leaving = append(leaving, name)
		}
	}
	return leaving
}

// neededByAnnotation on a follower lists the types of the leaves that need it. While one of these
// types is not served, the follower stays where it is, because missing leaves prove nothing then.
const neededByAnnotation = "splitter.workloads.kcp.dev/needed-by"

// neededBy returns the types in [neededByAnnotation].
func (f *Object) neededBy() []string {
	if list := f.GetAnnotations()[neededByAnnotation]; list != "" {
		return strings.Split(list, ",")
	}
	return nil
}
