package splitter

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

func TestSurge(t *testing.T) {
	t.Parallel()
	percent := intstr.FromString("10%")
	for _, tc := range []struct {
		policy policy
		whole  int64
		want   int64
	}{
		{policy{}, 10, 3}, // 25%, rounded up
		{policy{}, 8, 2},
		{policy{}, 0, 0},
		{policy{MaxSurge: &percent}, 11, 2},
		{policy{MaxSurge: surgeOf(0)}, 10, 0},
		{policy{MaxSurge: surgeOf(4)}, 10, 4},
		{policy{Divide: workloadv1alpha1.DivideWhole}, 1, 0},
	} {
		p := newPolicy(t, tc.policy)
		if got := p.surgeOf(tc.whole); got != tc.want {
			t.Errorf("%+v of %d: %d, want %d", tc.policy, tc.whole, got, tc.want)
		}
	}
}

// TestClusterOf tests that ClusterOf reads the fields of a Cluster object.
func TestClusterOf(t *testing.T) {
	t.Parallel()
	at := metav1.NewTime(start)
	c := &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: at}}
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	if got := ClusterOf(c, deployments); got.Ready || got.Serves || !got.Since.Equal(start) || !got.Silent.IsZero() {
		t.Errorf("a new Cluster is %+v", got)
	}
	c.Spec.EvictAfter, c.DeletionTimestamp = &at, &at
	c.Status.SyncedResources = []string{"configmaps", "deployments.apps"}
	c.Status.Conditions = []metav1.Condition{
		{Type: workloadv1alpha1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: at},
		{Type: workloadv1alpha1.ConditionHeartbeatHealthy, Status: metav1.ConditionFalse, LastTransitionTime: at},
	}
	if ClusterOf(c, deployments).Fences {
		t.Error("a cluster that says nothing of it fences")
	}
	c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: workloadv1alpha1.ConditionFencing, Status: metav1.ConditionTrue, LastTransitionTime: at})
	got := ClusterOf(c, deployments)
	if !got.Ready || !got.Serves || !got.Fences || !got.Removing || !got.Silent.Equal(start) || !got.EvictAfter.Equal(start) {
		t.Errorf("the Cluster is %+v", got)
	}
	if ClusterOf(c, schema.GroupResource{Resource: "deployments"}).Serves {
		t.Error("deployments of another group are served")
	}
	c.Status.SameAs = "b"
	for reason, want := range map[string]struct{ serves, missing bool }{
		workloadv1alpha1.ResourceNotReadable:  {},
		workloadv1alpha1.ResourceIncompatible: {},
		workloadv1alpha1.ResourceNotServed:    {serves: true, missing: true},
		workloadv1alpha1.ResourceRequestsWait: {serves: true},
	} {
		c.Status.ResourceProblems = []workloadv1alpha1.ResourceProblem{{Resource: "deployments.apps", Reason: reason, Since: at}}
		got := ClusterOf(c, deployments)
		if got.Serves != want.serves || got.Missing.Equal(start) != want.missing || got.SameAs != "b" {
			t.Errorf("with the problem %s the Cluster is %+v", reason, got)
		}
		if other := ClusterOf(c, schema.GroupResource{Resource: "configmaps"}); !other.Serves || !other.Missing.IsZero() {
			t.Errorf("with the problem %s of another type the Cluster is %+v", reason, other)
		}
	}
}
