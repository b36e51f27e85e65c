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

// Digest returns a hash of an object without its apiVersion, kind, metadata, status and replicas.
// Objects of one type with the same digest differ only in these.
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

// without returns a map without the field at path. It does not change m.
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

// Replicas returns the replicas in a spec, and whether the spec sets them. The number is 1 if it
// does not.
func Replicas(object *unstructured.Unstructured, path ScalePath) (int32, bool) {
	_, found, err := unstructured.NestedInt64(object.Object, path.spec()...)
	return int32At(object, 1, path.spec()), found && err == nil
}

// counts are the status fields that count the updated and the ready replicas. It contains types
// that omit a field when it is 0. Ready replicas can include old ones if the type adds new
// replicas before it removes old ones. In that case, all is the field that counts both.
var counts = map[schema.GroupKind]struct{ wanted, updated, ready, all []string }{
	{Group: "apps", Kind: "Deployment"}:  {[]string{"spec", "replicas"}, []string{"status", "updatedReplicas"}, []string{"status", "availableReplicas"}, []string{"status", "replicas"}},
	{Group: "apps", Kind: "StatefulSet"}: {wanted: []string{"spec", "replicas"}, updated: []string{"status", "updatedReplicas"}, ready: []string{"status", "availableReplicas"}},
	{Group: "apps", Kind: "ReplicaSet"}:  {wanted: []string{"spec", "replicas"}, updated: []string{"status", "fullyLabeledReplicas"}, ready: []string{"status", "availableReplicas"}},
	{Group: "apps", Kind: "DaemonSet"}: {
		wanted: []string{"status", "desiredNumberScheduled"}, updated: []string{"status", "updatedNumberScheduled"}, ready: []string{"status", "numberAvailable"},
	},
	{Group: "rik.dev", Kind: "Workload"}: {[]string{"spec", "replicas"}, []string{"status", "updatedReplicas"}, []string{"status", "readyReplicas"}, []string{"status", "replicas"}},
}

// Updated returns how many replicas of a leaf have the current spec. It is not known for all
// types.
func Updated(leaf *unstructured.Unstructured) (n int32, known bool) {
	fields, known := counts[leaf.GroupVersionKind().GroupKind()]
	if !known {
		return 0, false
	}
	return int32At(leaf, 0, fields.updated), true
}

// Progressed reports whether replicas with the current spec of a leaf run and are ready, and
// whether the cluster has given up on that spec.
func Progressed(leaf *unstructured.Unstructured, path ScalePath) (done, failed bool) {
	for _, c := range conditionsOf(leaf.Object) {
		failed = failed || c["type"] == "Progressing" && c["status"] == "False" && c["reason"] == "ProgressDeadlineExceeded"
	}
	seen, isSeen, _ := unstructured.NestedInt64(leaf.Object, "status", "observedGeneration")
	if isSeen && seen != leaf.GetGeneration() {
		return false, false // the status describes an earlier spec
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
