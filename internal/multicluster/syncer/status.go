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

// reportedStatus is the status downstream in upstream's terms: each observedGeneration
// is one of downstream's generations. While both are in sync the present one stands
// for upstream's present one; an older one says no more than what upstream was told
// before. It returns nil when downstream has no status.
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

// statusPatch is the merge patch that makes upstream's status this one, or nil when it
// is so already. One that is empty says as much as one that is missing: a server gives
// it to a new object, and no write is worth that.
func statusPatch(upstream *unstructured.Unstructured, status map[string]any) ([]byte, error) {
	reported, _, _ := unstructured.NestedMap(upstream.Object, "status")
	if len(reported) == 0 && len(status) == 0 || reflect.DeepEqual(reported, status) {
		return nil, nil
	}
	if status == nil {
		return nil, nil // a cluster that says nothing yet takes nothing back
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

// guarded adds to a merge patch that it is for this version of the object only.
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

// isShared says whether an object goes to more than one cluster, so that no single
// status can be its own.
func isShared(upstream *unstructured.Unstructured) bool {
	return len(workloadv1alpha1.Targets(upstream.GetLabels())) > 1
}

// maxStatusAnnotation bounds what one cluster's status takes of the 256 KiB that an
// object's annotations may have together.
const maxStatusAnnotation = 32 << 10

// statusAnnotation is what a shared object keeps of one cluster's status.
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

// annotationsPatch is the merge patch that gives upstream these annotations, an empty
// one meaning none, or nil when it has them already.
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

// withoutManagedFields is for caches of upstream, where nobody asks who owns a field.
func withoutManagedFields(object any) (any, error) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		u.SetManagedFields(nil)
	}
	return object, nil
}
