package instance

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

var noon = metav1.NewTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))

// object creates an instance with the finalizer of its node.
func object(phase rikv1alpha1.InstancePhase, node string, changes ...func(*rikv1alpha1.Instance)) *rikv1alpha1.Instance {
	in := &rikv1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", UID: "u", Finalizers: []string{rikv1alpha1.FinalizerNode}},
		Spec:       rikv1alpha1.InstanceSpec{Workload: "web", NodeName: node},
		Status:     rikv1alpha1.InstanceStatus{Phase: phase},
	}
	for _, c := range changes {
		c(in)
	}
	return in
}

func deleting(grace int64) func(*rikv1alpha1.Instance) {
	return func(in *rikv1alpha1.Instance) {
		in.DeletionTimestamp, in.DeletionGracePeriodSeconds = &noon, &grace
	}
}

func seen(phase rikv1alpha1.InstancePhase, sequence int64) *Observation {
	return &Observation{Node: "n", Sequence: sequence, Phase: phase, Status: &rikv1alpha1.InstanceStatus{Ready: phase == "Running"}}
}

func TestNext(t *testing.T) {
	t.Parallel()
	up := NodeFacts{Exists: true, LastSeen: true, Address: "192.0.2.7"}
	silent := NodeFacts{Exists: true, Silent: true}
	sequence := func(n int64) func(*rikv1alpha1.Instance) {
		return func(in *rikv1alpha1.Instance) { in.Status.Sequence = n }
	}
	unheard := NodeFacts{Exists: true, LastSeen: true, Unheard: true}
	forWantOfScheduler := func(in *rikv1alpha1.Instance) { in.Status.Reason = ReasonSchedulerUnavailable }
	two := int32(2)
	status := func(s rikv1alpha1.InstanceStatus) Step { return Step{Status: &s} }
	trouble := seen("Creating", 3)
	trouble.Reason, trouble.Message = "ImagePullFailed", "no such image"
	stuck := seen("Destroying", 4)
	stuck.Reason, stuck.Message = "StopFailed", "container init still running"
	crash := seen("Failed", 3)
	crash.Reason = "Error"
	crash.Status.Containers = []rikv1alpha1.ContainerStatus{{Name: "c", ExitCode: &two}}
	elsewhere := seen("Running", 3)
	elsewhere.Node = "other"
	held := seen("Running", 3) // by a node that does not clear ready
	held.Status.Suspended = true
	heldAndFailed := seen("Failed", 5)
	heldAndFailed.Status.Suspended = true
	bare := seen("Running", 3)
	bare.Status = nil
	for name, tc := range map[string]struct {
		in    *rikv1alpha1.Instance
		facts Facts
		want  Step
	}{
		"pending, nothing known": {object("Pending", ""), Facts{}, Step{}},
		"a proposal": {object("Pending", ""), Facts{Binding: &Binding{"n", []int32{80}}, Node: up},
			Step{Bind: "n", Status: &rikv1alpha1.InstanceStatus{Phase: "Creating", HostAddress: "192.0.2.7", HostPorts: []int32{80}}}},
		"a proposal of a node that is gone": {object("Pending", ""), Facts{Binding: &Binding{Node: "n"}}, Step{Refuse: true}},
		"unplaced": {object("Pending", ""), Facts{Unplaced: &Unplaced{"Unschedulable", "why"}},
			status(rikv1alpha1.InstanceStatus{Phase: "Pending", Reason: "Unschedulable", Message: "why"})},
		"no scheduler": {object("Pending", ""), Facts{Away: true},
			status(rikv1alpha1.InstanceStatus{Phase: "Pending", Reason: ReasonSchedulerUnavailable, Message: messageNoScheduler})},
		"no scheduler, unplaced before": {object("Pending", ""), Facts{Away: true, Unplaced: &Unplaced{"Unschedulable", "why"}},
			status(rikv1alpha1.InstanceStatus{Phase: "Pending", Reason: ReasonSchedulerUnavailable, Message: messageNoScheduler})},
		"the scheduler is back":            {object("Pending", "", forWantOfScheduler), Facts{Back: true}, status(rikv1alpha1.InstanceStatus{Phase: "Pending"})},
		"the scheduler came back just now": {object("Pending", "", forWantOfScheduler), Facts{}, Step{}},
		"the scheduler is back and says why": {object("Pending", "", forWantOfScheduler), Facts{Back: true, Unplaced: &Unplaced{"Unschedulable", "why"}},
			status(rikv1alpha1.InstanceStatus{Phase: "Pending", Reason: "Unschedulable", Message: "why"})},
		"unheard": {object("Running", "n"), Facts{Observation: seen("Running", 3), Node: unheard}, status(rikv1alpha1.InstanceStatus{
			Phase: "Unknown", Reason: ReasonSchedulerUnavailable, Message: "no scheduler is connected, so node n cannot report"})},
		"unheard, lost before":                {object("Unknown", "n"), Facts{Node: unheard}, Step{}},
		"unheard, but ended":                  {object("Failed", "n"), Facts{Node: unheard}, Step{}},
		"unheard, deleted":                    {object("Running", "n", deleting(30)), Facts{Node: unheard}, Step{}},
		"no scheduler, then a reporting node": {object("Unknown", "n", forWantOfScheduler), Facts{Observation: seen("Running", 3), Node: NodeFacts{Exists: true}}, Step{}},
		"proposed again":                      {object("Creating", "n"), Facts{Binding: &Binding{Node: "n"}, Node: up}, Step{}},
		"proposed elsewhere":                  {object("Creating", "n"), Facts{Binding: &Binding{Node: "m"}, Node: up}, Step{Refuse: true}},
		"bound without a phase":               {object("Pending", "n"), Facts{Node: up}, status(rikv1alpha1.InstanceStatus{Phase: "Creating", HostAddress: "192.0.2.7"})},
		"creating goes well":                  {object("Creating", "n"), Facts{Observation: seen("Creating", 1), Node: up}, Step{}},
		"creating runs into trouble": {object("Creating", "n"), Facts{Observation: trouble, Node: up},
			status(rikv1alpha1.InstanceStatus{Phase: "Creating", Reason: "ImagePullFailed", Message: "no such image", Sequence: 3, HostAddress: "192.0.2.7"})},
		"running": {object("Creating", "n"), Facts{Observation: seen("Running", 2), Node: up},
			status(rikv1alpha1.InstanceStatus{Phase: "Running", Ready: true, Sequence: 2, HostAddress: "192.0.2.7"})},
		"running without details": {object("Creating", "n"), Facts{Observation: bare, Node: up},
			status(rikv1alpha1.InstanceStatus{Phase: "Running", Sequence: 3, HostAddress: "192.0.2.7"})},
		"suspended": {object("Running", "n"), Facts{Observation: held, Node: up},
			status(rikv1alpha1.InstanceStatus{Phase: "Running", Reason: "Suspended", Suspended: true, Sequence: 3, HostAddress: "192.0.2.7"})},
		"resumed": {object("Running", "n", func(in *rikv1alpha1.Instance) {
			in.Status.Suspended, in.Status.Reason, in.Status.HostAddress = true, "Suspended", "192.0.2.7"
		}), Facts{Observation: seen("Running", 4), Node: up},
			status(rikv1alpha1.InstanceStatus{Phase: "Running", Ready: true, Sequence: 4, HostAddress: "192.0.2.7"})},
		"failed while suspended": {object("Running", "n"), Facts{Observation: heldAndFailed, Node: up, Now: noon},
			status(rikv1alpha1.InstanceStatus{Phase: "Failed", Sequence: 5, HostAddress: "192.0.2.7", FinishedAt: &noon})},
		"an earlier observation": {object("Running", "n", sequence(9)), Facts{Observation: seen("Creating", 8), Node: up}, Step{}},
		"of another node":        {object("Creating", "n"), Facts{Observation: elsewhere, Node: up}, Step{}},
		"an unknown phase":       {object("Creating", "n"), Facts{Observation: seen("Dancing", 3), Node: up}, Step{}},
		"no phase":               {object("Creating", "n"), Facts{Observation: seen("", 3), Node: up}, Step{}},
		"failed": {object("Running", "n"), Facts{Observation: crash, Node: up, Now: noon},
			status(rikv1alpha1.InstanceStatus{Phase: "Failed", Reason: "Error", Sequence: 3, FinishedAt: &noon, HostAddress: "192.0.2.7",
				Containers: []rikv1alpha1.ContainerStatus{{Name: "c", ExitCode: &two}}})},
		"an end is final": {object("Failed", "n"), Facts{Observation: seen("Running", 99), Node: up}, Step{}},
		"stopped unasked": {object("Running", "n"), Facts{Observation: seen("Terminated", 3), Node: up, Now: noon},
			status(rikv1alpha1.InstanceStatus{Phase: "Failed", Reason: ReasonStoppedByNode, Message: messageStoppedByNode, Sequence: 3, FinishedAt: &noon, HostAddress: "192.0.2.7"})},
		"silent": {object("Running", "n"), Facts{Node: silent},
			status(rikv1alpha1.InstanceStatus{Phase: "Unknown", Reason: ReasonNodeUnreachable, Message: "node n has not reported for longer than --node-timeout"})},
		"silent, but ended":         {object("Completed", "n"), Facts{Node: silent}, Step{}},
		"no report of the node yet": {object("Unknown", "n"), Facts{Observation: seen("Running", 3), Node: NodeFacts{Exists: true}}, Step{}},
		"back again": {object("Unknown", "n", sequence(3)), Facts{Observation: seen("Running", 3), Node: up},
			status(rikv1alpha1.InstanceStatus{Phase: "Running", Ready: true, Sequence: 3, HostAddress: "192.0.2.7"})},
		"deleted before it was bound": {object("Pending", "", deleting(30)), Facts{Binding: &Binding{Node: "n"}}, Step{Release: true, Refuse: true}},
		"deleted, its node works":     {object("Running", "n", deleting(30)), Facts{Observation: seen("Running", 3), Node: up}, Step{}},
		"deleted, its node is silent": {object("Running", "n", deleting(30)), Facts{Node: silent}, Step{}},
		"deleted, its node cannot": {object("Running", "n", deleting(30), sequence(3)), Facts{Observation: stuck, Node: up},
			status(rikv1alpha1.InstanceStatus{Phase: "Running", Sequence: 3, Reason: "StopFailed", Message: "container init still running"})},
		"deleted and confirmed": {object("Running", "n", deleting(30)), Facts{Observation: seen("Terminated", 3), Node: up}, Step{Release: true}},
		"confirmed by another node": {object("Running", "n", deleting(30)),
			Facts{Observation: &Observation{Node: "other", Sequence: 3, Phase: "Terminated"}, Node: up}, Step{}},
		"deleted, its node is gone": {object("Running", "n", deleting(30)), Facts{}, Step{Release: true, Tombstone: true}},
		"deleted by force":          {object("Running", "n", deleting(0)), Facts{Node: silent}, Step{Release: true, Tombstone: true}},
		"forced by annotation": {object("Running", "n", deleting(30), func(in *rikv1alpha1.Instance) {
			in.Annotations = map[string]string{AnnotationForce: ""}
		}), Facts{Node: silent}, Step{Release: true, Tombstone: true}},
		"the finalizer is gone": {object("Running", "n", deleting(30), func(in *rikv1alpha1.Instance) { in.Finalizers = nil }), Facts{}, Step{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := tc.in.DeepCopy()
			got := Next(tc.in, tc.facts)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Next (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.in); diff != "" {
				t.Errorf("Next changed its argument:\n%s", diff)
			}
		})
	}
}

func drawFacts(t *rapid.T) Facts {
	f := Facts{Now: noon, Node: NodeFacts{
		Exists: rapid.Bool().Draw(t, "exists"), Silent: rapid.Bool().Draw(t, "silent"), LastSeen: rapid.Bool().Draw(t, "heard"), Unheard: rapid.Bool().Draw(t, "unheard"),
	}}
	f.Away = rapid.Bool().Draw(t, "away")
	f.Back = !f.Away && rapid.Bool().Draw(t, "back")
	if rapid.Bool().Draw(t, "proposed") {
		f.Binding = &Binding{Node: rapid.SampledFrom([]string{"n", "m"}).Draw(t, "proposal")}
	}
	if f.Binding == nil && rapid.Bool().Draw(t, "explained") { // a proposal replaces an explanation
		f.Unplaced = &Unplaced{Reason: "R", Message: "M"}
	}
	if rapid.Bool().Draw(t, "observed") {
		f.Observation = seen(rapid.SampledFrom([]rikv1alpha1.InstancePhase{
			"Creating", "Running", "Completed", "Failed", "Destroying", "Terminated", "Nonsense",
		}).Draw(t, "phase"), rapid.Int64Range(0, 5).Draw(t, "sequence"))
	}
	return f
}

// TestNextIsStable: after a step was executed, the next step is empty. A restart at any point
// therefore writes nothing twice.
func TestNextIsStable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		node := rapid.SampledFrom([]string{"", "n"}).Draw(t, "node")
		phases := []rikv1alpha1.InstancePhase{"", "Pending", "Creating", "Running", "Completed", "Failed", "Unknown"}
		in := object(rapid.SampledFrom(phases).Draw(t, "has"), node)
		in.Status.Sequence = rapid.Int64Range(0, 5).Draw(t, "at")
		if rapid.Bool().Draw(t, "deleting") {
			deleting(rapid.Int64Range(0, 1).Draw(t, "grace"))(in)
		}
		facts := drawFacts(t)
		step := Next(in, facts)
		ended := in.Status.Phase.Ended()
		if step.Bind != "" {
			if in.Spec.NodeName != "" {
				t.Fatalf("bound twice")
			}
			in.Spec.NodeName = step.Bind
			// The same facts apply to the node that the instance is now bound to.
		}
		if step.Status != nil {
			in.Status = *step.Status
		}
		if ended && !in.Status.Phase.Ended() {
			t.Fatalf("an end was taken back: %+v", step)
		}
		if step.Release {
			in.Finalizers = nil
		}
		facts.Binding = nil // acknowledged
		if step.Bind != "" {
			facts.Observation = nil
			facts.Node.Silent, facts.Node.Unheard = false, false
		}
		if again := Next(in, facts); again != (Step{}) {
			t.Fatalf("another step: %+v after %+v", again, step)
		}
	})
}
