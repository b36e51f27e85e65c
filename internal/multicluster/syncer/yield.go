package syncer

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// yieldManager owns a field downstream after the syncer has released it. A field without an owner
// would be removed. The next client that sets the field takes over the ownership.
const yieldManager = workloadv1alpha1.FieldManager + "-yield"

// replicas is the field that autoscalers set.
var replicas = []string{"spec", "replicas"}

// yielded returns the fields of desired that other clients set after the object was created.
// These are the fields that upstream lists, and the replicas if an autoscaler has set them. The
// replicas are never included if they are 0 upstream, because 0 means that nothing may run in the
// cluster.
func yielded(upstream, downstream *unstructured.Unstructured) [][]string {
	fields := declared(upstream)
	if autoscaler(downstream) != "" && !isKept(upstream) {
		fields = append(fields, replicas)
	}
	return slices.DeleteFunc(fields, func(path []string) bool { return isZero(upstream, path) })
}

// declared returns the fields that upstream lists.
func declared(upstream *unstructured.Unstructured) [][]string {
	var fields [][]string
	for name := range strings.SplitSeq(upstream.GetAnnotations()[workloadv1alpha1.YieldAnnotation], ",") {
		path := strings.Split(strings.TrimPrefix(strings.TrimSpace(name), "."), ".")
		// The syncer identifies its objects by their metadata, so it does not yield that.
		if len(path) > 1 && path[0] != "metadata" && path[0] != "status" {
			fields = append(fields, path)
		}
	}
	return fields
}

// isKept reports whether upstream yields nothing to autoscalers in the cluster.
func isKept(upstream *unstructured.Unstructured) bool {
	return strings.TrimSpace(upstream.GetAnnotations()[workloadv1alpha1.YieldAnnotation]) == workloadv1alpha1.YieldNone
}

// isZero reports whether a field is a number of replicas and 0.
func isZero(upstream *unstructured.Unstructured, path []string) bool {
	n, found, err := unstructured.NestedInt64(upstream.Object, path...)
	return path[len(path)-1] == "replicas" && found && err == nil && n == 0
}

// autoscaler returns the program that has set the replicas through the scale subresource, as
// autoscalers do. It is empty if no program has set them. A change by a user with kubectl is
// drift.
func autoscaler(downstream *unstructured.Unstructured) string {
	for _, entry := range downstream.GetManagedFields() {
		if entry.Subresource == "scale" && !strings.HasPrefix(entry.Manager, "kubectl") &&
			ownedBy(entry).owns(replicas) {
			return entry.Manager
		}
	}
	return ""
}

// yieldNote returns a problem if the cluster sets the replicas and upstream has not declared
// that. Otherwise it returns nil.
func yieldNote(upstream, downstream *unstructured.Unstructured) *problem {
	isReplicas := func(path []string) bool { return slices.Equal(path, replicas) }
	if !slices.ContainsFunc(yielded(upstream, downstream), isReplicas) || slices.ContainsFunc(declared(upstream), isReplicas) {
		return nil
	}
	return &problem{reasonYielded, fmt.Sprintf(
		"%q in the cluster has set spec.replicas through the scale subresource, and so the kcp does not set it there, unless it is 0. To take it back, set the annotation %s=%s; if it is meant, %[2]s=spec.replicas",
		autoscaler(downstream), workloadv1alpha1.YieldAnnotation, workloadv1alpha1.YieldNone)}
}

// withoutFields removes fields from an object.
func withoutFields(object *unstructured.Unstructured, fields [][]string) {
	for _, path := range fields {
		unstructured.RemoveNestedField(object.Object, path...)
	}
}

// handover returns what the yield manager applies before the syncer releases fields that it owns:
// their current values, with the resource version as a precondition. It is nil if the syncer owns
// none of the fields.
func handover(downstream *unstructured.Unstructured, fields [][]string) *unstructured.Unstructured {
	ours := ownership(downstream)
	kept := &unstructured.Unstructured{Object: map[string]any{}}
	for _, path := range fields {
		value, found, err := unstructured.NestedFieldCopy(downstream.Object, path...)
		if err == nil && found && ours.owns(path) && unstructured.SetNestedField(kept.Object, value, path...) != nil {
			return nil // a path contains another one, so the shorter path includes the longer one
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

// isOurs reports whether an entry contains the fields that this syncer applied.
func isOurs(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == workloadv1alpha1.FieldManager && entry.Subresource == "" &&
		entry.Operation == metav1.ManagedFieldsOperationApply
}
