package split

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/rikctltest"
)

func TestSplitNames(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		given []string
		want  [][2]string
	}{
		{[]string{"deployment/web"}, [][2]string{{"deployment", "web"}}},
		{[]string{"deployment", "web", "api"}, [][2]string{{"deployment", "web"}, {"deployment", "api"}}},
		{[]string{"deployment/web", "statefulset/db"}, [][2]string{{"deployment", "web"}, {"statefulset", "db"}}},
		{[]string{"deployment"}, nil},
		{[]string{"deployment/web", "db"}, nil},
		{[]string{"deployment", "statefulset/db"}, nil},
		{[]string{"deployment/"}, nil},
		{[]string{"/web"}, nil},
		{[]string{"a/b/c"}, nil},
		{[]string{"deployment", ""}, nil},
	} {
		got, err := splitNames(tc.given)
		if diff := cmp.Diff(tc.want, got); diff != "" || (err != nil) != (tc.want == nil) {
			t.Errorf("splitNames(%q) = %v, %v", tc.given, got, err)
		}
	}
}

// TestLeavingLeaf checks the explanation of what keeps a leaf that is being removed.
func TestLeavingLeaf(t *testing.T) {
	t.Parallel()
	since := metav1.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	ready := func(status metav1.ConditionStatus) *workloadv1alpha1.Cluster {
		return &workloadv1alpha1.Cluster{Status: workloadv1alpha1.ClusterStatus{Conditions: []metav1.Condition{{
			Type: workloadv1alpha1.ConditionReady, Status: status, Reason: "Unreachable", Message: "dial tcp: timeout", LastTransitionTime: since,
		}}}}
	}
	for name, tc := range map[string]struct {
		deleting, former bool
		cluster          *workloadv1alpha1.Cluster
		want             []string
	}{
		"not deleted yet":          {false, true, ready("False"), []string{"has been deleted", "The splitter deletes it"}},
		"unreachable":              {true, true, ready("False"), []string{"was the leaf in cluster east of deployments.apps/web, which has been deleted", "not ready since 2026-11-22T10:00:00Z (Unreachable): dial tcp: timeout", "rikctl cluster unregister east"}},
		"unreachable, with a root": {true, false, ready("False"), []string{"is the leaf of deployments.apps/web in cluster east", "marked for deletion since 2026-11-22T10:00:00Z", "unregister"}},
		"reachable":                {true, true, ready("True"), []string{"is deleted when cluster east has deleted its copy", "Its syncer reports: a webhook refuses"}},
		"not registered":           {true, true, nil, []string{"Cluster east is not registered"}},
		"never reached":            {true, true, &workloadv1alpha1.Cluster{}, []string{"has not connected to cluster east yet"}},
	} {
		leaf := &unstructured.Unstructured{Object: map[string]any{}}
		leaf.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: "east"})
		leaf.SetAnnotations(map[string]string{workloadv1alpha1.ProblemAnnotationPrefix + "east": "a webhook refuses"})
		if tc.deleting {
			leaf.SetDeletionTimestamp(&since)
		}
		ref := reference{resource: schema.GroupResource{Group: "apps", Resource: "deployments"}, name: "web--east"}
		got := leavingLeaf(ref, "web", leaf, tc.former, tc.cluster)
		for _, want := range tc.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: leavingLeaf() = %q, want %q in it", name, got, want)
			}
		}
	}
}

func TestAddedCluster(t *testing.T) {
	t.Parallel()
	east := rikctltest.Cluster("east", nil)
	east.Status.Conditions = append(east.Status.Conditions, metav1.Condition{Type: workloadv1alpha1.ConditionFencing, Status: metav1.ConditionTrue})
	registered := []*workloadv1alpha1.Cluster{east}
	c, err := addedCluster("north=region=eu,cpu=2500m,memory=8Gi,capacity.example.com/gpu=3,example.com/tier=gold", registered, rikctltest.At(1).Time)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"region": "eu", "example.com/tier": "gold"}, c.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	gpus := c.Status.Allocatable["example.com/gpu"]
	if c.Status.Allocatable.Cpu().MilliValue() != 2500 || c.Status.Allocatable.Memory().Value() != 8<<30 || gpus.Value() != 3 {
		t.Errorf("it has %v", c.Status.Allocatable)
	}
	if diff := cmp.Diff([]string{"deployments.apps"}, c.Status.SyncedResources); diff != "" || !meta.IsStatusConditionTrue(c.Status.Conditions, workloadv1alpha1.ConditionFencing) {
		t.Errorf("it takes %v, and its conditions are %v", c.Status.SyncedResources, c.Status.Conditions)
	}
	for _, text := range []string{"", "East", "east", "a.b", "north=region", "north=cpu=many", "north=region=a b", "north=,", "north==x"} {
		if _, err := addedCluster(text, registered, rikctltest.At(1).Time); !errors.As(err, &cmdline.UsageError{}) {
			t.Errorf("addedCluster(%q) = %v, want a usage error", text, err)
		}
	}
}

// TestExpectedLeavesRegisteredClusters checks that a registered cluster keeps its own status.
func TestExpectedLeavesRegisteredClusters(t *testing.T) {
	t.Parallel()
	broken := rikctltest.Cluster("east", nil)
	turn(broken, workloadv1alpha1.ConditionReady, rikctltest.At(2).Time)
	if got := expected(broken, []*workloadv1alpha1.Cluster{broken}); got != broken {
		t.Errorf("expected = %v", got)
	}
}

func TestOverlay(t *testing.T) {
	t.Parallel()
	live := rikctltest.Parse(t, "{apiVersion: v1, kind: A, spec: {replicas: 3, template: {a: 1, b: [1, 2]}}, status: {x: 1}}")
	overlay(live.Object, rikctltest.Parse(t, "{apiVersion: v1, kind: A, spec: {replicas: 5, template: {b: [3]}, more: {c: 1}}}").Object)
	if diff := cmp.Diff(rikctltest.Parse(t, "{apiVersion: v1, kind: A, spec: {replicas: 5, template: {a: 1, b: [3]}, more: {c: 1}}, status: {x: 1}}").Object, live.Object); diff != "" {
		t.Errorf("overlay (-want +got):\n%s", diff)
	}
}

// TestScenarios checks the effect of each flag, and that the original snapshot does not change.
func TestScenarios(t *testing.T) {
	t.Parallel()
	now := rikctltest.At(12).Time
	before := atRest(t)
	after := before.over()
	s := Scenario{Lost: []string{"east"}, Added: []string{"north"}, Cordoned: []string{"north"}, NotReady: []string{"east"}, Removed: []string{"west"}}
	if err := s.apply(after, now); err != nil {
		t.Fatal(err)
	}
	east, north := after.cluster("east"), after.cluster("north")
	if after.cluster("west") != nil || !north.Spec.Unschedulable || east == before.cluster("east") {
		t.Errorf("the clusters are %v", after.clusters)
	}
	for _, kind := range []string{workloadv1alpha1.ConditionReady, workloadv1alpha1.ConditionHeartbeatHealthy} {
		found := false
		for _, c := range east.Status.Conditions {
			found = found || c.Type == kind && c.Status == metav1.ConditionFalse && c.LastTransitionTime.Time.Equal(now)
		}
		if !found {
			t.Errorf("the lost cluster has no %s=False since now: %v", kind, east.Status.Conditions)
		}
	}
	if len(before.clusters) != 2 || before.cluster("east").Status.Conditions[0].Status != metav1.ConditionTrue {
		t.Errorf("the first snapshot has become %v", before.clusters)
	}
}

// An object may follow no other one, or have no labels at all.
func TestUndivided(t *testing.T) {
	t.Parallel()
	ref := reference{resource: schema.GroupResource{Resource: "configmap"}, name: "x"}
	for name, tc := range map[string]struct {
		labels, annotations map[string]string
		want                string
	}{
		"nothing":         {nil, nil, "configmap/x goes to no cluster"},
		"an empty list":   {nil, map[string]string{workloadv1alpha1.FollowsAnnotation: ""}, "configmap/x goes to no cluster"},
		"sent by a label": {map[string]string{workloadv1alpha1.ClusterLabel: "east"}, nil, "The labels of configmap/x send it to east."},
		"it follows others": {
			map[string]string{workloadv1alpha1.TargetLabelPrefix + "east": "true"}, map[string]string{workloadv1alpha1.FollowsAnnotation: "east"},
			"configmap/x goes to east, because objects there need it.",
		},
	} {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetLabels(tc.labels)
		o.SetAnnotations(tc.annotations)
		if got := undivided(ref, o); !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
