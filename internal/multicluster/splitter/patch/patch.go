// Package patch makes the JSON merge patches with which the splitter changes objects.
package patch

import (
	"encoding/json"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Body returns a merge patch that applies only to one resource version of an object. It has the
// fields of rest and the given metadata. Both may be nil. Body adds to metadata.
func Body(object metav1.Object, metadata, rest map[string]any) ([]byte, error) {
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

// Difference returns the merge patch that changes one map into another.
func Difference(before, after map[string]string) map[string]any {
	out := map[string]any{}
	for name, value := range after {
		if old, ok := before[name]; !ok || old != value {
			out[name] = value
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			out[name] = nil
		}
	}
	return out
}
