package rollout

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/rikctltest"
)

func TestRolloutProgress(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*rikv1alpha1.Workload)
		want   string
		done   bool
		err    string
	}{
		{"manual", func(w *rikv1alpha1.Workload) { w.Spec.Deploy = rikv1alpha1.DeployManual }, "", false, "deploy: Manual"},
		{"not seen", func(w *rikv1alpha1.Workload) { w.Generation = 3 }, "waiting for the controller", false, ""},
		{"paused", func(w *rikv1alpha1.Workload) { w.Spec.Paused = true }, "", false, "paused"},
		{"stuck", func(w *rikv1alpha1.Workload) {
			w.Status.Conditions = []metav1.Condition{{Type: rikv1alpha1.WorkloadProgressing, Status: metav1.ConditionFalse, Reason: reasonDeadline, Message: "no node"}}
		}, "", false, "no node"},
		{"failed for good", func(w *rikv1alpha1.Workload) {
			w.Status.Conditions = []metav1.Condition{{Type: rikv1alpha1.WorkloadProgressing, Status: metav1.ConditionFalse, Reason: reasonFailed, Message: "all failed"}}
		}, "", false, "all failed"},
		{"old ones only", func(w *rikv1alpha1.Workload) { w.Status.UpdatedReplicas = 1 }, "1 of 3 instances are of the new revision", false, ""},
		{"old ones left", func(w *rikv1alpha1.Workload) { w.Status.Replicas = 4 }, "1 instances of older revisions", false, ""},
		{"not ready", func(*rikv1alpha1.Workload) {}, "2 of 3 instances are ready", false, ""},
		{"done", func(w *rikv1alpha1.Workload) { w.Status.ReadyReplicas = 3 }, "is rolled out", true, ""},
		{"none wanted", func(w *rikv1alpha1.Workload) {
			w.Spec.Replicas, w.Status = new(int32(0)), rikv1alpha1.WorkloadStatus{ObservedGeneration: 2}
		}, "0 of 0", true, ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := rikctltest.Workload()
			tc.change(w)
			got, err := rolloutProgress(w)
			if (err == nil) != (tc.err == "") || (err != nil && !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("rolloutProgress() error = %v, want %q", err, tc.err)
			}
			if !strings.Contains(got.message, tc.want) || got.done != tc.done {
				t.Errorf("rolloutProgress() = %q, %v; want %q, %v", got.message, got.done, tc.want, tc.done)
			}
		})
	}
}

func TestUndoTarget(t *testing.T) {
	t.Parallel()
	revision := func(name string, number int64) rikv1alpha1.WorkloadRevision {
		return rikv1alpha1.WorkloadRevision{ObjectMeta: metav1.ObjectMeta{Name: name}, Revision: number}
	}
	all := []rikv1alpha1.WorkloadRevision{revision("b", 5), revision("a", 2), revision("c", 7)}
	tests := []struct {
		name      string
		revisions []rikv1alpha1.WorkloadRevision
		number    int64
		want      string
		err       string
	}{
		{"the one before", all, 0, "b", ""},
		{"a number", all, 2, "a", ""},
		{"the current", all, 7, "", "is the current one"},
		{"a missing one", all, 3, "", "7, 5, 2"},
		{"none before", all[2:], 0, "", "no earlier revision"},
	}
	for _, tc := range tests {
		got, err := undoTarget(tc.revisions, "c", tc.number)
		switch {
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("%s: error = %v, want %q", tc.name, err, tc.err)
		case tc.err == "" && (err != nil || got.Name != tc.want):
			t.Errorf("%s: undoTarget() = %v, %v; want %s", tc.name, got, err, tc.want)
		}
	}
}
