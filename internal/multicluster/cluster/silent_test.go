package cluster

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// TestClusterBecomesSilent tests that fences start at the first status without a heartbeat. Only that
// status is written with the resource version from which it was decided.
func TestClusterBecomesSilent(t *testing.T) {
	t.Parallel()
	status := func(heartbeat metav1.ConditionStatus) workloadv1alpha1.ClusterStatus {
		if heartbeat == "" {
			return workloadv1alpha1.ClusterStatus{}
		}
		return workloadv1alpha1.ClusterStatus{Conditions: []metav1.Condition{{Type: workloadv1alpha1.ConditionHeartbeatHealthy, Status: heartbeat}}}
	}
	for _, tc := range []struct {
		before, after metav1.ConditionStatus
		want          bool
	}{
		{"True", "False", true}, {"Unknown", "False", true}, {"", "False", true},
		{"False", "False", false}, {"False", "True", false}, {"True", "True", false}, {"True", "Unknown", false},
	} {
		if got := fallsSilent(status(tc.before), status(tc.after)); got != tc.want {
			t.Errorf("from %q to %q: %v, want %v", tc.before, tc.after, got, tc.want)
		}
	}
}
