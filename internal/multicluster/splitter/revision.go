package splitter

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Digest stands for all of an object but its metadata, its status and its replicas:
// objects of one type that have the same are the same but for these.
func Digest(object *unstructured.Unstructured, path ScalePath) (string, error) {
	content := maps.Clone(object.Object)
	for _, name := range []string{"apiVersion", "kind", "metadata", "status"} {
		delete(content, name)
	}
	data, err := json.Marshal(without(content, path.spec()))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", object.GetName(), err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]), nil
}

// without is a map without one field; the map itself stays as it is.
func without(m map[string]any, path []string) map[string]any {
	inner, ok := m[path[0]]
	if !ok {
		return m
	}
	out := maps.Clone(m)
	if len(path) == 1 {
		delete(out, path[0])
	} else if inner, ok := inner.(map[string]any); ok {
		out[path[0]] = without(inner, path[1:])
	}
	return out
}

// Replicas are those of a spec; none if it does not say.
func Replicas(object *unstructured.Unstructured, path ScalePath) (int32, bool) {
	_, found, err := unstructured.NestedInt64(object.Object, path.spec()...)
	return int32At(object, 1, path.spec()), found && err == nil
}

// counts are the fields of a status that say how many replicas have the present spec and
// how many do their work, of types that leave a field out when it is 0. What do their work
// may be old ones, where new ones are added before these go: all then counts both.
var counts = map[schema.GroupKind]struct{ wanted, updated, ready, all []string }{
	{Group: "apps", Kind: "Deployment"}:  {[]string{"spec", "replicas"}, []string{"status", "updatedReplicas"}, []string{"status", "availableReplicas"}, []string{"status", "replicas"}},
	{Group: "apps", Kind: "StatefulSet"}: {wanted: []string{"spec", "replicas"}, updated: []string{"status", "updatedReplicas"}, ready: []string{"status", "availableReplicas"}},
	{Group: "apps", Kind: "ReplicaSet"}:  {wanted: []string{"spec", "replicas"}, updated: []string{"status", "fullyLabeledReplicas"}, ready: []string{"status", "availableReplicas"}},
	{Group: "apps", Kind: "DaemonSet"}: {
		wanted: []string{"status", "desiredNumberScheduled"}, updated: []string{"status", "updatedNumberScheduled"}, ready: []string{"status", "numberAvailable"},
	},
	{Group: "rik.dev", Kind: "Workload"}: {[]string{"spec", "replicas"}, []string{"status", "updatedReplicas"}, []string{"status", "readyReplicas"}, []string{"status", "replicas"}},
}

// Updated is how many replicas of a leaf have the present spec; not known of all types.
func Updated(leaf *unstructured.Unstructured) (n int32, known bool) {
	fields, known := counts[leaf.GroupVersionKind().GroupKind()]
	if !known {
		return 0, false
	}
	return int32At(leaf, 0, fields.updated), true
}

// Progressed says whether the present spec of a leaf runs and does its work, and whether
// its cluster has given up on it.
func Progressed(leaf *unstructured.Unstructured, path ScalePath) (done, failed bool) {
	for _, c := range conditionsOf(leaf.Object) {
		failed = failed || c["type"] == "Progressing" && c["status"] == "False" && c["reason"] == "ProgressDeadlineExceeded"
	}
	seen, isSeen, _ := unstructured.NestedInt64(leaf.Object, "status", "observedGeneration")
	if isSeen && seen != leaf.GetGeneration() {
		return false, false // what it says is about another spec
	}
	if known, ok := counts[leaf.GroupVersionKind().GroupKind()]; ok {
		wanted := int32At(leaf, 1, known.wanted)
		if known.wanted[0] == "status" {
			wanted = int32At(leaf, 0, known.wanted)
		}
		updated := int32At(leaf, 0, known.updated)
		left := known.all != nil && int32At(leaf, 0, known.all) > updated
		return isSeen && !failed && !left && updated >= wanted && int32At(leaf, 0, known.ready) >= wanted, failed
	}
	replicas := int32At(leaf, 1, path.spec())
	ready := int32At(leaf, replicas, []string{"status", "readyReplicas"})
	return !failed && isReady(leaf, false, replicas, ready), failed
}
