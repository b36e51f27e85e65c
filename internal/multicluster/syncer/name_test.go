package syncer_test

import (
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

var statefulSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}

const statefulSetText = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: %s, namespace: team}
spec:
  serviceName: db
  replicas: 1
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, image: "db:1"}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`

// leafOf returns the leaf of a root in a cluster. If named is true, it has the name of the root
// there.
func leafOf(t *testing.T, root *unstructured.Unstructured, cluster string, named bool) *unstructured.Unstructured {
	t.Helper()
	leaf := parse(t, fmt.Sprintf(statefulSetText, root.GetName()+"--"+cluster))
	leaf.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: cluster, workloadv1alpha1.OwnedByLabel: root.GetName()})
	leaf.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(root, root.GroupVersionKind())})
	if named {
		leaf.SetAnnotations(map[string]string{workloadv1alpha1.NameAnnotation: root.GetName()})
	}
	return leaf
}

// TestALeafHasItsRootsName tests that the pods of a StatefulSet have the names that users expect.
// Objects that are in the cluster already keep their names, and therefore their data.
func TestALeafHasItsRootsName(t *testing.T) {
	p := startPair(t, "names")
	p.publish(p.kube.Rest(), statefulSets)
	p.carries("names", append([]string{"statefulsets.apps"}, core...)...)
	root := create(t, p.objects, statefulSets, parse(t, fmt.Sprintf(statefulSetText, "db")))
	create(t, p.objects, statefulSets, leafOf(t, root, "names", true))

	copied := has(t, p.down, statefulSets, p.there, "db", field("db--names", "metadata", "annotations", workloadv1alpha1.UpstreamNameAnnotation))
	if notes := copied.GetAnnotations(); notes[workloadv1alpha1.NameAnnotation] != "" {
		t.Errorf("the copy says how it is called: %v", notes)
	}
	hasNot(t, p.down, statefulSets, p.there, "db--names")

	// The status is copied upstream, and drift is corrected, as for any object.
	patch(t, p.down, statefulSets, p.there, "db", `{"status":{"replicas":1,"readyReplicas":1,"observedGeneration":1}}`, "status")
	has(t, p.objects, statefulSets, "team", "db--names", field(1, "status", "readyReplicas"))
	patch(t, p.down, statefulSets, p.there, "db", `{"spec":{"replicas":5},"metadata":{"annotations":{"`+workloadv1alpha1.UpstreamNameAnnotation+`":null}}}`)
	same := func(o *unstructured.Unstructured) error {
		if o.GetUID() != copied.GetUID() {
			return errors.New("it was made anew")
		}
		return errors.Join(field(1, "spec", "replicas")(o), field("db--names", "metadata", "annotations", workloadv1alpha1.UpstreamNameAnnotation)(o))
	}
	has(t, p.down, statefulSets, p.there, "db", same)

	// The annotation is removed, and the syncer restarts: the name stays.
	patch(t, p.objects, statefulSets, "team", "db--names", `{"metadata":{"annotations":{"`+workloadv1alpha1.NameAnnotation+`":null}},"spec":{"template":{"metadata":{"labels":{"v":"2"}}}}}`)
	has(t, p.down, statefulSets, p.there, "db", field("2", "spec", "template", "metadata", "labels", "v"))
	if err := p.stop(); err != nil {
		t.Fatalf("Run() = %v", err)
	}
	p.running = p.sync("names", p.kube.Rest())
	p.passes("restarted")
	has(t, p.down, statefulSets, p.there, "db", same)
	hasNot(t, p.down, statefulSets, p.there, "db--names")

	// An earlier leaf that was created under its own name keeps that name.
	old := create(t, p.objects, statefulSets, parse(t, fmt.Sprintf(statefulSetText, "old")))
	create(t, p.objects, statefulSets, leafOf(t, old, "names", false))
	has(t, p.down, statefulSets, p.there, "old--names", anyhow)
	patch(t, p.objects, statefulSets, "team", "old--names", `{"metadata":{"annotations":{"`+workloadv1alpha1.NameAnnotation+`":"old"}},"spec":{"replicas":2}}`)
	has(t, p.down, statefulSets, p.there, "old--names", field(2, "spec", "replicas"))
	hasNot(t, p.down, statefulSets, p.there, "old")

	// A user's own object with the name stays as it is, and the conflict is reported.
	own := parse(t, fmt.Sprintf(statefulSetText, "own"))
	own.SetNamespace(p.there)
	create(t, p.down, statefulSets, own)
	create(t, p.objects, statefulSets, leafOf(t, create(t, p.objects, statefulSets, parse(t, fmt.Sprintf(statefulSetText, "own"))), "names", true))
	has(t, p.objects, statefulSets, "team", "own--names", problem("names", "Conflict"))
	has(t, p.down, statefulSets, p.there, "own", field(nil, "metadata", "annotations", workloadv1alpha1.UpstreamUIDAnnotation))

	// A label sends the root to the cluster, and its leaf is deleted: one after the other.
	patch(t, p.objects, statefulSets, "team", "db", `{"metadata":{"labels":{"`+workloadv1alpha1.ClusterLabel+`":"names"}}}`)
	p.passes("waiting")
	has(t, p.down, statefulSets, p.there, "db", same)
	remove(t, p.objects, statefulSets, "team", "db--names")
	hasNot(t, p.objects, statefulSets, "team", "db--names")
	has(t, p.down, statefulSets, p.there, "db", field(root.GetUID(), "metadata", "annotations", workloadv1alpha1.UpstreamUIDAnnotation))
	for _, name := range []string{"db", "old--names", "own--names"} {
		remove(t, p.objects, statefulSets, "team", name)
		hasNot(t, p.objects, statefulSets, "team", name)
	}
	hasNot(t, p.down, statefulSets, p.there, "db")
	has(t, p.down, statefulSets, p.there, "own", anyhow)
}
