package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"rik.dev/rik/api/rik/fence"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// TestFencedStopsAndStartsNothing: for any fenced workload, all instances that run or could run
// are stopped, ended ones stay, and no new ones are created.
func TestFencedStopsAndStartsNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := Situation{Spec: drawSpec(t), Revision: "new", Members: drawMembers(t), Now: noon, Fenced: "no contact"}
		plan := Make(s)
		if len(plan.Create) > 0 {
			t.Fatalf("%d instances are started", len(plan.Create))
		}
		made := 0
		after := carryOut(s, plan, &made)
		for i, m := range after.Members {
			ended := m.Instance.Status.Phase.Ended()
			if !m.Ending && !ended {
				t.Fatalf("%s, which is %s, does not stop", m.Instance.Name, m.Instance.Status.Phase)
			}
			if ended && m.Ending != s.Members[i].Ending {
				t.Fatalf("%s has ended and is deleted", m.Instance.Name)
			}
		}
		if again := Make(after); !again.Empty() {
			t.Fatalf("planning again plans %+v", again)
		}
	})
}

// TestFencedStatus checks the status that users see.
func TestFencedStatus(t *testing.T) {
	t.Parallel()
	w := &rikv1alpha1.Workload{Spec: *spec(2, nil)}
	s := Situation{Spec: &w.Spec, Revision: "new", Now: noon, Members: []Member{member("a", "new", "up"), member("b", "new", "up")}}
	before, _ := Status(w, s, nil)
	if meta.FindStatusCondition(before.Conditions, ConditionFenced) != nil {
		t.Errorf("the condition Fenced of a workload that is not: %v", before.Conditions)
	}
	w.Status = before
	s.Members, s.Fenced = nil, "the kcp is silent"
	during, _ := Status(w, s, nil)
	got := map[string]string{}
	for _, c := range during.Conditions {
		got[c.Type] = string(c.Status) + " " + c.Reason
	}
	want := map[string]string{"Available": "False Fenced", "Progressing": "Unknown Fenced", "Fenced": "True NoContact"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("conditions while fenced (-want +got):\n%s", diff)
	}
	if c := fenceChange(&before, &during); c == nil || c.reason != "Fenced" || c.note != "the kcp is silent" {
		t.Errorf("the closed fence is reported as %+v", c)
	}
	w.Status, s.Fenced = during, ""
	after, _ := Status(w, s, nil)
	if c := fenceChange(&during, &after); c == nil || c.reason != "Unfenced" {
		t.Errorf("the open fence is reported as %+v", c)
	}
	if c := fenceChange(&during, &during); c != nil {
		t.Errorf("no change is reported as %+v", c)
	}
	if c := meta.FindStatusCondition(after.Conditions, rikv1alpha1.WorkloadProgressing); c.Status != metav1.ConditionTrue {
		t.Errorf("after the fence: %+v, want a rollout that goes on anew", c)
	}
}

// TestRollbackKeepsTheFence: a rollback does not restore the fence of an older template.
func TestRollbackKeepsTheFence(t *testing.T) {
	t.Parallel()
	older := &rikv1alpha1.InstanceTemplate{
		OnDisconnect: rikv1alpha1.DisconnectStop, Annotations: map[string]string{"a": "b", fence.Annotation: "30s"},
	}
	w := &rikv1alpha1.Workload{}
	w.Spec.OnDisconnect = rikv1alpha1.DisconnectKeep
	got := withoutFence(older, w)
	if diff := cmp.Diff(map[string]string{"a": "b"}, got.Annotations); diff != "" || got.OnDisconnect != rikv1alpha1.DisconnectKeep {
		t.Errorf("the template is put back with %v and annotations (-want +got):\n%s", got.OnDisconnect, diff)
	}
	w.Spec.Annotations = map[string]string{fence.Annotation: "1m"}
	if got := withoutFence(older, w); got.Annotations[fence.Annotation] != "30s" {
		t.Errorf("a template of its own loses its fence: %v", got.Annotations)
	}
}
