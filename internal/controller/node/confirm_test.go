package node

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/instance"
)

func lower(term int64, confirmed bool) Held {
	return Held{Confirmed: confirmed, Confirmation: &rikv1alpha1.NodeConfirmation{Reason: rikv1alpha1.ConfirmLowerTerm, Term: term}}
}

func TestTermAbove(t *testing.T) {
	t.Parallel()
	unknown := Held{Confirmed: true, Confirmation: &rikv1alpha1.NodeConfirmation{Reason: rikv1alpha1.ConfirmUnknownInstances}}
	for _, tc := range []struct {
		name  string
		nodes []Held
		want  int64
	}{
		{"no node waits", nil, 0},
		{"not confirmed", []Held{lower(41, false)}, 0},
		{"one has", []Held{lower(41, true)}, 41},
		{"the highest of the near ones", []Held{lower(41, true), lower(45, false)}, 45},
		{"a far one counts only by its own name", []Held{lower(41, true), lower(5000, false)}, 41},
		{"and then it does", []Held{lower(41, false), lower(5000, true)}, 5000},
		{"1,000 above is near", []Held{lower(41, true), lower(1038, false)}, 1038},
		{"1,001 above is far", []Held{lower(41, true), lower(1039, false)}, 41},
		{"another confirmation raises nothing", []Held{unknown, lower(41, false)}, 0},
	} {
		if got := TermAbove(38, tc.nodes); got != tc.want {
			t.Errorf("%s: TermAbove = %d, want %d", tc.name, got, tc.want)
		}
	}
}

// TestExplain: the text of every reason names the node, the next step and its effect.
func TestExplain(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{rikv1alpha1.ConfirmUnknownInstances, rikv1alpha1.ConfirmOtherCluster, rikv1alpha1.ConfirmLowerTerm, rikv1alpha1.ConfirmUnknownNode} {
		text := Explain("worker-1", &rikv1alpha1.NodeConfirmation{Reason: reason, Instances: 5, Term: 41, ControllerTerm: 38, Cluster: "c1"})
		if !strings.Contains(text, "`rikctl node confirm worker-1`") {
			t.Errorf("%s: %q does not say the next step", reason, text)
		}
	}
}

// TestAHeldNodeIsNotReady: a node that waits for a confirmation is not ready. A second pass
// changes nothing, not even a time.
func TestAHeldNodeIsNotReady(t *testing.T) {
	t.Parallel()
	at := metav1.NewTime(noon)
	n := &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	n.Status = Status(n, report(true), false, time.Time{}, at)
	held := report(true)
	held.Hold = &rikv1alpha1.NodeConfirmation{ID: "h", Reason: rikv1alpha1.ConfirmOtherCluster, Cluster: "c1"}
	n.Status = Status(n, held, false, time.Time{}, at)
	for _, c := range n.Status.Conditions {
		if c.Type == rikv1alpha1.NodeReady && (c.Status != metav1.ConditionFalse || c.Reason != rikv1alpha1.NodeConfirmationNeeded) {
			t.Errorf("Ready is %v", c)
		}
	}
	if diff := cmp.Diff(n.Status, Status(n, held, false, time.Time{}, metav1.NewTime(noon.Add(time.Hour)))); diff != "" {
		t.Errorf("looking again changes the status:\n%s", diff)
	}
	n.Status = Status(n, report(true), false, time.Time{}, at)
	if n.Status.Confirmation != nil {
		t.Errorf("the confirmation is still shown: %v", n.Status.Confirmation)
	}
}

// TestARefusedNodeIsNotReady: a node whose connection the controller refuses is not ready, also if it
// reports to the scheduler. A node that waits for a confirmation shows that reason.
func TestARefusedNodeIsNotReady(t *testing.T) {
	t.Parallel()
	n := &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	refused, held := report(true), report(true)
	refused.Troubles = map[nodestate.TroubleKind]string{nodestate.TroubleController: "install rik v2 on the node"}
	held.Troubles = refused.Troubles
	held.Hold = &rikv1alpha1.NodeConfirmation{ID: "h", Reason: rikv1alpha1.ConfirmOtherCluster, Cluster: "c1"}
	for _, step := range []struct {
		report       *Report
		reason, says string
	}{
		{report(true), "Connected", ""},
		{refused, "RefusedByController", "install rik v2 on the node"},
		{held, rikv1alpha1.NodeConfirmationNeeded, ""},
		{report(true), "Connected", ""},
	} {
		n.Status = Status(n, step.report, false, time.Time{}, metav1.NewTime(noon))
		ready := meta.FindStatusCondition(n.Status.Conditions, rikv1alpha1.NodeReady)
		if ready == nil || ready.Reason != step.reason || (ready.Status == metav1.ConditionTrue) != (step.reason == "Connected") || !strings.Contains(ready.Message, step.says) {
			t.Errorf("Ready is %+v, want the reason %s", ready, step.reason)
		}
	}
}

func TestDeletedKeepsTheNewest(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 4, 0, 0, 0, 0, time.UTC)
	uids := map[string]string{"a": "2026-01-01T00:00:00Z", "b": "2026-01-02T00:00:00Z", "ahead": "2099-01-01T00:00:00Z"}
	instance.KeepNewest(uids, 2, now)
	if diff := cmp.Diff(map[string]string{"b": "2026-01-02T00:00:00Z", "ahead": "2026-01-04T00:00:00Z"}, uids); diff != "" {
		t.Error(diff)
	}
}
