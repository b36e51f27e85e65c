package syncer

import (
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
// those that upstream lists, and the replicas when an autoscaler has set them.
func yielded(upstream, downstream *unstructured.Unstructured) [][]string {
	var fields [][]string
	for name := range strings.SplitSeq(upstream.GetAnnotations()[workloadv1alpha1.YieldAnnotation], ",") {
		path := strings.Split(strings.TrimPrefix(strings.TrimSpace(name), "."), ".")
		// Metadata is how we know our objects; it is not given away.
		if len(path) > 1 && path[0] != "metadata" && path[0] != "status" {
			fields = append(fields, path)
		}
	}
	if isAutoscaled(downstream) {
		fields = append(fields, replicas)
	}
	return fields
}

// isAutoscaled says whether a program has set the replicas through the scale
// subresource, as autoscalers do. A person with kubectl is drift, not an autoscaler.
func isAutoscaled(downstream *unstructured.Unstructured) bool {
	for _, entry := range downstream.GetManagedFields() {
		if entry.Subresource == "scale" && !strings.HasPrefix(entry.Manager, "kubectl") &&
			ownedBy(entry).owns(replicas) {
			return true
		}
	}
	return false
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
