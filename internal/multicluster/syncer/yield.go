package syncer

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// yieldManager keeps a field alive downstream after we have let go of it: a field that
// nobody owns is removed. Whoever sets it next takes it from this owner.
const yieldManager = workloadv1alpha1.FieldManager + "-yield"

// replicas is what autoscalers set.
var replicas = []string{"spec", "replicas"}

// yielded are the fields of desired that are others' to set once the object exists:
// those that upstream lists, and the replicas when an autoscaler has set them. Replicas
// that are 0 upstream are never among them: 0 means that nothing may run in the cluster.
func yielded(upstream, downstream *unstructured.Unstructured) [][]string {
	fields := declared(upstream)
	if autoscaler(downstream) != "" && !isKept(upstream) {
		fields = append(fields, replicas)
	}
	return slices.DeleteFunc(fields, func(path []string) bool { return isZero(upstream, path) })
}

// declared are the fields that upstream lists.
func declared(upstream *unstructured.Unstructured) [][]string {
	var fields [][]string
	for name := range strings.SplitSeq(upstream.GetAnnotations()[workloadv1alpha1.YieldAnnotation], ",") {
		path := strings.Split(strings.TrimPrefix(strings.TrimSpace(name), "."), ".")
		// Metadata is how we know our objects; it is not given away.
		if len(path) > 1 && path[0] != "metadata" && path[0] != "status" {
			fields = append(fields, path)
		}
	}
	return fields
}

// isKept says whether upstream gives nothing to autoscalers of the cluster.
func isKept(upstream *unstructured.Unstructured) bool {
	return strings.TrimSpace(upstream.GetAnnotations()[workloadv1alpha1.YieldAnnotation]) == workloadv1alpha1.YieldNone
}

// isZero says whether a field is a number of replicas and 0.
func isZero(upstream *unstructured.Unstructured, path []string) bool {
	n, found, err := unstructured.NestedInt64(upstream.Object, path...)
	return path[len(path)-1] == "replicas" && found && err == nil && n == 0
}

// autoscaler is the program that has set the replicas through the scale subresource, as
// autoscalers do; empty if there is none. A person with kubectl is drift, not an autoscaler.
func autoscaler(downstream *unstructured.Unstructured) string {
	for _, entry := range downstream.GetManagedFields() {
		if entry.Subresource == "scale" && !strings.HasPrefix(entry.Manager, "kubectl") &&
			ownedBy(entry).owns(replicas) {
			return entry.Manager
		}
	}
	return ""
}

// yieldNote tells that the cluster sets the replicas although upstream has not said that it
// may; nil if that is not so.
func yieldNote(upstream, downstream *unstructured.Unstructured) *problem {
	isReplicas := func(path []string) bool { return slices.Equal(path, replicas) }
	if !slices.ContainsFunc(yielded(upstream, downstream), isReplicas) || slices.ContainsFunc(declared(upstream), isReplicas) {
		return nil
	}
	return &problem{reasonYielded, fmt.Sprintf(
		"%q in the cluster has set spec.replicas through the scale subresource, and so the kcp does not set it there, unless it is 0. To take it back, set the annotation %s=%s; if it is meant, %[2]s=spec.replicas",
		autoscaler(downstream), workloadv1alpha1.YieldAnnotation, workloadv1alpha1.YieldNone)}
}

// withoutFields takes fields out of an object.
func withoutFields(object *unstructured.Unstructured, fields [][]string) {
	for _, path := range fields {
		unstructured.RemoveNestedField(object.Object, path...)
	}
}

// handover is what the yield manager applies before we let go of fields that we own:
// their present values, guarded by the resource version. It is nil when there is none.
func handover(downstream *unstructured.Unstructured, fields [][]string) *unstructured.Unstructured {
	ours := ownership(downstream)
	kept := &unstructured.Unstructured{Object: map[string]any{}}
	for _, path := range fields {
		value, found, err := unstructured.NestedFieldCopy(downstream.Object, path...)
		if err == nil && found && ours.owns(path) && unstructured.SetNestedField(kept.Object, value, path...) != nil {
			return nil // paths that lie in one another: the longer ones are in the shorter
		}
	}
	if len(kept.Object) == 0 {
		return nil
	}
	kept.SetAPIVersion(downstream.GetAPIVersion())
	kept.SetKind(downstream.GetKind())
	kept.SetName(downstream.GetName())
	kept.SetNamespace(downstream.GetNamespace())
	kept.SetUID(downstream.GetUID())
	kept.SetResourceVersion(downstream.GetResourceVersion())
	return kept
}

// isOurs picks the entry of what we applied.
func isOurs(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == workloadv1alpha1.FieldManager && entry.Subresource == "" &&
		entry.Operation == metav1.ManagedFieldsOperationApply
}
