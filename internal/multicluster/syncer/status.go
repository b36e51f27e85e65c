package syncer

import (
	"encoding/json"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

const observedGeneration = "observedGeneration"

// reportedStatus returns the status of the downstream object for upstream. Each
// observedGeneration in the downstream status is a generation of the downstream object. While
// both objects are in sync, the current generation becomes that of the upstream object. For an
// older one, the value that was reported before stays. It returns nil if downstream has no
// status.
func reportedStatus(upstream, downstream *unstructured.Unstructured, inSync bool) map[string]any {
	status, found, err := unstructured.NestedMap(downstream.Object, "status")
	if err != nil || !found {
		return nil
	}
	reported, _, _ := unstructured.NestedMap(upstream.Object, "status")
	g := generations{downstream: downstream.GetGeneration(), upstream: upstream.GetGeneration(), inSync: inSync}
	g.translate(status, reported)
	conditions, _ := status["conditions"].([]any)
	reportedConditions, _ := reported["conditions"].([]any)
	for _, c := range conditions {
		if condition, ok := c.(map[string]any); ok {
			g.translate(condition, ofType(reportedConditions, condition["type"]))
		}
	}
	return status
}

type generations struct {
	downstream, upstream int64
	inSync               bool
}

func (g generations) translate(status, reported map[string]any) {
	observed, ok := status[observedGeneration].(int64)
	if !ok {
		return
	}
	delete(status, observedGeneration)
	if g.inSync && observed >= g.downstream {
		status[observedGeneration] = g.upstream
	} else if before, ok := reported[observedGeneration].(int64); ok {
		status[observedGeneration] = min(before, g.upstream)
	}
}

func ofType(conditions []any, kind any) map[string]any {
	for _, c := range conditions {
		if condition, ok := c.(map[string]any); ok && condition["type"] == kind {
			return condition
		}
	}
	return nil
}

// statusPatch returns the merge patch that sets the upstream status, or nil if nothing changes.
// An empty status equals a missing one: servers give a new object an empty status, and that is
// not worth a write.
func statusPatch(upstream *unstructured.Unstructured, status map[string]any) ([]byte, error) {
	reported, _, _ := unstructured.NestedMap(upstream.Object, "status")
	if len(reported) == 0 && len(status) == 0 || reflect.DeepEqual(reported, status) {
		return nil, nil
	}
	if status == nil {
		return nil, nil // a cluster that has not reported yet does not remove anything
	}
	before, err := json.Marshal(map[string]any{"status": reported})
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return nil, err
	}
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(before, after, before)
	if err != nil {
		return nil, err
	}
	return guarded(patch, upstream)
}

// guarded adds a precondition on the resource version to a merge patch.
func guarded(patch []byte, object *unstructured.Unstructured) ([]byte, error) {
	var fields map[string]any
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, err
	}
	metadata, _ := fields["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["resourceVersion"] = object.GetResourceVersion()
	metadata["uid"] = string(object.GetUID())
	fields["metadata"] = metadata
	return json.Marshal(fields)
}

// isShared reports whether an object goes to more than one cluster. The status of one cluster
// cannot be the status of such an object.
func isShared(upstream *unstructured.Unstructured) bool {
	return len(workloadv1alpha1.Targets(upstream.GetLabels())) > 1
}

// maxStatusAnnotation limits the status of one cluster in an annotation, in bytes. All
// annotations of an object may have 256 KiB in total.
const maxStatusAnnotation = 32 << 10

// statusAnnotation returns the annotation value for the status of one cluster on a shared object.
func statusAnnotation(status map[string]any) (string, error) {
	if len(status) == 0 {
		return "", nil
	}
	raw, err := json.Marshal(status)
	if err != nil {
		return "", err
	}
	if len(raw) > maxStatusAnnotation {
		return "", fmt.Errorf("the status has %d bytes; %d fit into an annotation of a shared object", len(raw), maxStatusAnnotation)
	}
	return string(raw), nil
}

// annotationsPatch returns the merge patch that sets the annotations upstream, or nil if nothing
// changes. An empty value removes an annotation.
func annotationsPatch(upstream *unstructured.Unstructured, wanted map[string]string) ([]byte, error) {
	present := upstream.GetAnnotations()
	changes := map[string]any{}
	for name, value := range wanted {
		before, found := present[name]
		switch {
		case value == "" && found:
			changes[name] = nil
		case value != "" && before != value:
			changes[name] = value
		}
	}
	if len(changes) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"annotations": changes, "uid": string(upstream.GetUID())}})
}

// withoutManagedFields is a transform for the upstream caches, which do not need the owners of
// fields.
func withoutManagedFields(object any) (any, error) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		u.SetManagedFields(nil)
	}
	return object, nil
}
