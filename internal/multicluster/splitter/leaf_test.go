package splitter

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// object parses YAML as the API machinery does, with integers.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	return o
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: team
  uid: "123"
  generation: 7
  resourceVersion: "9"
  finalizers: [a]
  ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: x, uid: y}]
  labels: {app: web, sync.workloads.kcp.dev/east: "true"}
  annotations:
    note: mine
    workloads.kcp.dev/yield: spec.paused
    workloads.kcp.dev/fence-after: 30s
    placement.workloads.kcp.dev/weights: east=3
    splitter.workloads.kcp.dev/progress: "{}"
    kubectl.kubernetes.io/last-applied-configuration: "{}"
spec:
  replicas: 10
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, tier: front}}
    spec: {containers: [{name: web, image: web}]}
status: {replicas: 3}
`

func TestRender(t *testing.T) {
	t.Parallel()
	root := object(t, deployment)
	before := root.DeepCopy()
	five := int32(5)
	leaf, err := Render(root, "east", ScalePath{}, &five)
	if err != nil {
		t.Fatal(err)
	}
	Stamp(leaf, Change{Action: Create, To: 5, AtMost: 5})
	want := object(t, `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web--east
  namespace: team
  labels: {app: web, workloads.kcp.dev/cluster: east, kcp.dev/owned-by: web}
  annotations:
    note: mine
    workloads.kcp.dev/yield: spec.paused
    workloads.kcp.dev/fence-after: 30s
    splitter.workloads.kcp.dev/at-most: "5"
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: "123", controller: true, blockOwnerDeletion: true}]
spec:
  replicas: 5
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, tier: front}}
    spec: {containers: [{name: web, image: web}]}
`)
	if diff := cmp.Diff(want.Object, leaf.Object); diff != "" {
		t.Errorf("the leaf (want, got):\n%s", diff)
	}
	if diff := cmp.Diff(before.Object, root.Object); diff != "" {
		t.Errorf("the root was changed:\n%s", diff)
	}
	if whole, err := Render(root, "east", ScalePath{}, nil); err != nil || int32At(whole, 0, []string{"spec", "replicas"}) != 10 {
		t.Errorf("taken as it is: %v, %v", whole, err)
	}
}

// TestRenderWithoutMarks tests that a leaf has no marks by which a tool would take it for its own
// object.
func TestRenderWithoutMarks(t *testing.T) {
	t.Parallel()
	root := object(t, deployment)
	root.SetLabels(map[string]string{
		"app": "web", "app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "shop", "app.kubernetes.io/managed-by": "Helm",
		"applyset.kubernetes.io/part-of": "applyset-x-v1", "kustomize.toolkit.fluxcd.io/name": "shop", "argocd.argoproj.io/instance": "shop",
	})
	root.SetAnnotations(map[string]string{
		"note": "mine", "meta.helm.sh/release-name": "shop", "argocd.argoproj.io/tracking-id": "x", "deployment.kubernetes.io/revision": "3",
		"kubectl.kubernetes.io/last-applied-configuration": "{}", "downscaler/original-replicas": "10",
	})
	leaf, err := Render(root, "east", ScalePath{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantLabels := map[string]string{"app": "web", "app.kubernetes.io/name": "web", workloadv1alpha1.ClusterLabel: "east", workloadv1alpha1.OwnedByLabel: "web"}
	if diff := cmp.Diff(wantLabels, leaf.GetLabels()); diff != "" {
		t.Errorf("the labels of the leaf (want, got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"note": "mine"}, leaf.GetAnnotations()); diff != "" {
		t.Errorf("the annotations of the leaf (want, got):\n%s", diff)
	}
}

func TestLeafName(t *testing.T) {
	t.Parallel()
	long, longest := strings.Repeat("a", 60), strings.Repeat("b", 253)
	seen := map[string]bool{}
	for _, tc := range []struct{ root, cluster, want string }{
		{root: "my-deployment", cluster: "us-east1", want: "my-deployment--us-east1"},
		{root: "web.v2", cluster: "a", want: "web.v2--a"},
		{root: "a--b", cluster: "c"},
		{root: "a", cluster: "b--c"},
		{root: long, cluster: "east"},
		{root: long, cluster: "west"},
		{root: long + "a", cluster: "west"},
		{root: longest, cluster: strings.Repeat("c", 63)},
		{root: strings.Repeat("d", 40) + "." + strings.Repeat("e", 30), cluster: "f"},
	} {
		got := LeafName(tc.root, tc.cluster)
		if tc.want != "" && got != tc.want {
			t.Errorf("LeafName(%s, %s) = %s, want %s", tc.root, tc.cluster, got, tc.want)
		}
		if len(got) > maxLeafName || len(validation.IsDNS1123Subdomain(got)) > 0 || seen[got] {
			t.Errorf("LeafName(%s, %s) = %s: too long, no name, or not the only one", tc.root, tc.cluster, got)
		}
		seen[got] = true
	}
	if got := OwnerLabel(longest); len(validation.IsValidLabelValue(got)) > 0 || got == OwnerLabel(longest[1:]) {
		t.Errorf("OwnerLabel of a long name is %s", got)
	}
}

func TestReadLeaf(t *testing.T) {
	t.Parallel()
	meta := "metadata: {name: web--east, generation: 3, labels: {workloads.kcp.dev/cluster: east}"
	for name, tc := range map[string]struct {
		text   string
		divide workloadv1alpha1.Division
		want   Leaf
	}{
		"settled": {"kind: Deployment\n" + meta + ", annotations: {splitter.workloads.kcp.dev/at-most: '9'}}\nspec: {replicas: 5}\nstatus: {observedGeneration: 3, replicas: 4, readyReplicas: 2}",
			workloadv1alpha1.DivideReplicas, Leaf{Cluster: "east", Replicas: 5, Running: 4, Ready: 2, AtMost: 9, Settled: true}},
		"no word yet": {"kind: Deployment\n" + meta + ", annotations: {splitter.workloads.kcp.dev/lost-at: '2026-01-02T03:04:05Z'}}\nspec: {replicas: 5}",
			workloadv1alpha1.DivideReplicas, Leaf{Cluster: "east", Replicas: 5, LostAt: start}},
		"an older word": {"kind: Deployment\n" + meta + "}\nspec: {}\nstatus: {observedGeneration: 2, replicas: 4}",
			workloadv1alpha1.DivideReplicas, Leaf{Cluster: "east", Replicas: 1, Running: 4}},
		"given away": {"kind: Deployment\n" + meta + ", annotations: {workloads.kcp.dev/yield: 'spec.paused, .spec.replicas'}}\nspec: {replicas: 2}",
			workloadv1alpha1.DivideReplicas, Leaf{Cluster: "east", Replicas: 2, Autoscaled: true}},
		"going": {"kind: Deployment\n" + meta + ", deletionTimestamp: '2026-01-02T03:04:05Z'}\nspec: {replicas: 2}",
			workloadv1alpha1.DivideReplicas, Leaf{Cluster: "east", Replicas: 2, Deleting: true}},
		"whole and ready": {"kind: StatefulSet\n" + meta + "}\nspec: {replicas: 3}\nstatus: {observedGeneration: 3, replicas: 3, readyReplicas: 3}",
			workloadv1alpha1.DivideWhole, Leaf{Cluster: "east", Replicas: 1, Running: 1, Ready: 1, Settled: true}},
		"whole and not ready": {"kind: StatefulSet\n" + meta + "}\nspec: {replicas: 3}\nstatus: {observedGeneration: 3, replicas: 3, readyReplicas: 2}",
			workloadv1alpha1.DivideWhole, Leaf{Cluster: "east", Replicas: 1, Running: 1, Settled: true}},
		"whole by its condition": {"kind: Database\n" + meta + "}\nstatus: {conditions: [{type: Ready, status: 'False'}]}",
			workloadv1alpha1.DivideWhole, Leaf{Cluster: "east", Replicas: 1, Running: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ReadLeaf(object(t, "apiVersion: apps/v1\n"+tc.text), ScalePath{}, tc.divide)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(want, got):\n%s", diff)
			}
		})
	}
	// ReadLeaf reads what Stamp wrote.
	noted := object(t, "apiVersion: apps/v1\nkind: Deployment\n"+meta+"}")
	Stamp(noted, Change{Action: Scale, AtMost: 8})
	Stamp(noted, Change{Action: Note, LostAt: start.In(time.FixedZone("x", 3600))})
	if got := ReadLeaf(noted, ScalePath{}, workloadv1alpha1.DivideReplicas); got.AtMost != 8 || !got.LostAt.Equal(start) {
		t.Errorf("noted 8 and %v, read %+v", start, got)
	}
}

// TestAggregate tests that the status of a root is the sum of its parts.
func TestAggregate(t *testing.T) {
	t.Parallel()
	east := object(t, `{apiVersion: a/v1, kind: K, status: {observedGeneration: 3, replicas: 5, readyReplicas: 5, collisionCount: 1, conditions: [
		{type: Available, status: "True", reason: MinimumReplicasAvailable, message: fine, lastTransitionTime: "2026-01-01T00:00:00Z"},
		{type: Progressing, status: "True", reason: NewReplicaSetAvailable}]}}`).Object["status"].(map[string]any)
	west := object(t, `{apiVersion: a/v1, kind: K, status: {observedGeneration: 9, replicas: 5, readyReplicas: 3, unavailableReplicas: 2, conditions: [
		{type: Available, status: "False", reason: MinimumReplicasUnavailable, message: two are missing, lastTransitionTime: "2026-01-03T00:00:00Z"},
		{type: Progressing, status: "True", reason: NewReplicaSetAvailable},
		{type: ReplicaFailure, status: "True", reason: FailedCreate, message: quota}]}}`).Object["status"].(map[string]any)
	both := []Part{{Cluster: "west", Current: true, Status: west}, {Cluster: "east", Current: true, Status: east}}
	for name, tc := range map[string]struct {
		total Total
		want  string
	}{
		"both": {Total{Generation: 4, Seen: 3, Parts: both}, `{observedGeneration: 4, replicas: 10, readyReplicas: 8, unavailableReplicas: 2, conditions: [
			{type: Available, status: "False", reason: MinimumReplicasUnavailable, message: "west: two are missing", lastTransitionTime: "2026-01-03T00:00:00Z"},
			{type: Progressing, status: "True", reason: NewReplicaSetAvailable},
			{type: ReplicaFailure, status: "True", reason: FailedCreate, message: "west: quota"}]}`},
		"one is behind": {Total{Generation: 4, Seen: 3, Parts: []Part{{Cluster: "a", Status: map[string]any{"replicas": int64(2)}}}},
			`{observedGeneration: 3, replicas: 2}`},
		"one says nothing": {Total{Generation: 4, Parts: []Part{{Cluster: "a", Current: true}, {Cluster: "b", Current: true, Status: east}}},
			`{observedGeneration: 4, replicas: 5, readyReplicas: 5, conditions: [
			{type: Available, status: Unknown, reason: NotReported, message: "a: it says nothing of this", lastTransitionTime: "2026-01-01T00:00:00Z"},
			{type: Progressing, status: Unknown, reason: NotReported, message: "a: it says nothing of this"}]}`},
		"one has an earlier spec": {Total{Generation: 4, Seen: 3, Parts: []Part{
			{Cluster: "a", Current: true, Status: map[string]any{"replicas": int64(2), "updatedReplicas": int64(1)}},
			{Cluster: "b", Behind: true, Status: map[string]any{"replicas": int64(3), "updatedReplicas": int64(3), "updatedNumberScheduled": int64(3)}},
		}}, `{observedGeneration: 3, replicas: 5, updatedReplicas: 1, updatedNumberScheduled: 0}`},
		"the whole has an earlier spec": {Total{Divide: workloadv1alpha1.DivideWhole, Generation: 4, Seen: 3, Parts: []Part{
			{Cluster: "a", Behind: true, Status: map[string]any{"phase": "Ready", "updatedReplicas": int64(3)}},
		}}, `{observedGeneration: 3, phase: Ready, updatedReplicas: 0}`},
		"no clusters": {Total{Generation: 4, NoClusters: true, Unplaced: 3},
			`{observedGeneration: 4, conditions: [{type: Progressing, status: "False", reason: NoRegisteredClusters, message: there are no clusters}]}`},
		"unplaced": {Total{Generation: 4, Unplaced: 3, Parts: both[1:]},
			`{observedGeneration: 4, replicas: 5, readyReplicas: 5, conditions: [
			{type: Available, status: "True", reason: MinimumReplicasAvailable, message: "east: fine", lastTransitionTime: "2026-01-01T00:00:00Z"},
			{type: Progressing, status: "False", reason: NoOpenCluster, message: no cluster takes 3 of the whole}]}`},
		"beyond all numbers": {Total{Generation: 4, Parts: []Part{
			{Cluster: "a", Current: true, Status: map[string]any{"up": int64(math.MaxInt64), "down": int64(math.MinInt64)}},
			{Cluster: "b", Current: true, Status: map[string]any{"up": int64(1), "down": int64(-1)}},
		}}, `{observedGeneration: 4, up: 9223372036854775807, down: -9223372036854775808}`},
		"whole": {Total{Divide: workloadv1alpha1.DivideWhole, Generation: 4, Parts: []Part{{Cluster: "a", Current: true, Status: map[string]any{"phase": "Ready", "observedGeneration": int64(8)}}}},
			`{observedGeneration: 4, phase: Ready}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := object(t, "{apiVersion: a/v1, kind: K, status: "+tc.want+"}").Object["status"]
			if diff := cmp.Diff(want, any(Aggregate(tc.total))); diff != "" {
				t.Errorf("(want, got):\n%s", diff)
			}
		})
	}
}

func TestRollout(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		leaves         []Revision
		cluster, waits string
		paused         bool
	}{
		"the first":         {leaves: []Revision{{Cluster: "b"}, {Cluster: "a"}}, cluster: "a"},
		"the next":          {leaves: []Revision{{Cluster: "b"}, {Cluster: "a", New: true, Done: true}}, cluster: "b"},
		"not yet":           {leaves: []Revision{{Cluster: "b"}, {Cluster: "a", New: true}}, waits: "a"},
		"failed":            {leaves: []Revision{{Cluster: "b"}, {Cluster: "a", New: true, Failed: true}}, waits: "a", paused: true},
		"lost on the way":   {leaves: []Revision{{Cluster: "b"}, {Cluster: "a", New: true, Lost: true}}, cluster: "b"},
		"all":               {leaves: []Revision{{Cluster: "a", New: true, Done: true}}},
		"nothing to update": {},
	} {
		if cluster, waits, paused := Rollout(tc.leaves); cluster != tc.cluster || waits != tc.waits || paused != tc.paused {
			t.Errorf("%s: %q, %q, %v; want %q, %q, %v", name, cluster, waits, paused, tc.cluster, tc.waits, tc.paused)
		}
	}
}

// TestReadRefusal tests that ReadLeaf detects whether the cluster accepts a leaf.
func TestReadRefusal(t *testing.T) {
	t.Parallel()
	for said, want := range map[string][2]bool{
		"": {false, false}, "Refused: exceeded quota": {true, true}, "Conflict: the name is taken": {true, true},
		"NamespaceConflict: it is another's": {true, true}, "Immutable: the selector": {false, false}, "ReplicasYielded: by x": {false, false},
	} {
		leaf := &unstructured.Unstructured{Object: map[string]any{}}
		leaf.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: "east"})
		leaf.SetAnnotations(map[string]string{workloadv1alpha1.ProblemAnnotationPrefix + "east": said, workloadv1alpha1.ProblemAnnotationPrefix + "west": "Refused: elsewhere"})
		Stamp(leaf, Change{Action: Scale, RefusedAt: start})
		got := ReadLeaf(leaf, ScalePath{}, workloadv1alpha1.DivideReplicas)
		if got.Refused != want[0] || got.Never != want[1] || !got.RefusedAt.Equal(start) {
			t.Errorf("with the problem %q the leaf is %+v, want refused and never %v", said, got, want)
		}
		leaf.Object["status"] = map[string]any{"replicas": int64(1)}
		if got := ReadLeaf(leaf, ScalePath{}, workloadv1alpha1.DivideReplicas); got.Refused != want[0] || got.Never {
			t.Errorf("with the problem %q and a status the leaf is %+v", said, got)
		}
	}
}
