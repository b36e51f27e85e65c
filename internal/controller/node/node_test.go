package node

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/instance"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestAskedLabels(t *testing.T) {
	t.Parallel()
	kept, refused := AskedLabels(map[string]string{
		"disk": "fast", "example.org/rack": "7", rikv1alpha1.LabelZone: "z1",
		"rik.dev/tenant": "other", "node-role.kubernetes.io/control-plane": "", "evil.k8s.io/x": "y",
		"kubernetes.io/hostname": "forged", "not a key": "x", "bad-value": "no spaces",
	})
	if diff := cmp.Diff(map[string]string{"disk": "fast", "example.org/rack": "7", rikv1alpha1.LabelZone: "z1"}, kept); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	if len(refused) != 6 {
		t.Errorf("refused %q, want six", refused)
	}
}

func TestParseTaints(t *testing.T) {
	t.Parallel()
	got, err := ParseTaints([]byte(`[{"key":"gpu","effect":"NoSchedule"},{"key":"rik.dev/unreachable","effect":"NoSchedule"},
		{"key":"x","effect":"Nonsense"},{"key":"","effect":"NoExecute"}]`))
	if diff := cmp.Diff([]rikv1alpha1.Taint{{Key: "gpu", Effect: "NoSchedule"}}, got); err != nil || diff != "" {
		t.Errorf("ParseTaints (%v, -want +got):\n%s", err, diff)
	}
	if got, err := ParseTaints(nil); got != nil || err != nil {
		t.Errorf("ParseTaints(nil) = %v, %v", got, err)
	}
	if _, err := ParseTaints([]byte("{")); err == nil {
		t.Error("malformed JSON is no error")
	}
}

func report(connected bool) *Report {
	return &Report{
		Connected: connected, Labels: map[string]string{"disk": "fast"},
		Taints: []rikv1alpha1.Taint{{Key: "gpu", Effect: rikv1alpha1.TaintNoSchedule}},
		Status: &rikv1alpha1.NodeStatus{Info: rikv1alpha1.NodeInfo{
			Architecture: "amd64", OperatingSystem: "linux", Hostname: "vm", Kinds: []rikv1alpha1.WorkloadKind{"Pod"},
		}},
	}
}

func TestShape(t *testing.T) {
	t.Parallel()
	first := Fresh("n", report(true))
	if first.Labels["disk"] != "fast" || first.Labels[rikv1alpha1.LabelHostname] != "n" || len(first.Spec.Taints) != 1 {
		t.Fatalf("Fresh = %+v", first)
	}
	if !sameSpec(first, Shape(first, report(true))) {
		t.Error("shaping twice changes the node")
	}
	// A label or taint that an administrator removed or changed is not set again by the next
	// join.
	first.Spec.Taints, first.Labels["disk"] = nil, "slow"
	if again := Shape(first, report(true)); again.Labels["disk"] != "slow" || len(again.Spec.Taints) != 0 {
		t.Errorf("a later join changed the node: %+v", again)
	}
	lost := Shape(first, report(false))
	want := []rikv1alpha1.Taint{{Key: rikv1alpha1.TaintUnreachable, Effect: rikv1alpha1.TaintNoSchedule}}
	if diff := cmp.Diff(want, lost.Spec.Taints); diff != "" {
		t.Errorf("taints of a silent node (-want +got):\n%s", diff)
	}
	if untold := Shape(lost, nil); len(untold.Spec.Taints) != 1 {
		t.Error("without a report the taint does not stay")
	}
	if back := Shape(lost, report(true)); len(back.Spec.Taints) != 0 {
		t.Errorf("taints after the return: %v", back.Spec.Taints)
	}
	lost.Spec.Unschedulable = true
	if cordoned := Shape(lost, report(true)); len(cordoned.Spec.Taints) != 1 || cordoned.Spec.Taints[0].Key != rikv1alpha1.TaintUnschedulable {
		t.Errorf("taints of a cordoned node: %v", cordoned.Spec.Taints)
	}
	// The Node object was created when the node joined, before its first report.
	joined := Shape(&rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": "mine"}}}, report(true))
	if joined.Labels["disk"] != "mine" || len(joined.Spec.Taints) != 1 {
		t.Errorf("first report of a node that had joined: %+v", joined)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	at := metav1.NewTime(noon)
	ready := func(s rikv1alpha1.NodeStatus) string {
		c := meta.FindStatusCondition(s.Conditions, rikv1alpha1.NodeReady)
		if c == nil {
			return ""
		}
		return string(c.Status) + " " + c.Reason
	}
	n := &rikv1alpha1.Node{}
	pressed, bare := report(true), report(true)
	pressed.DiskPressure = true
	bare.Status.Info.Kinds = nil
	for _, tc := range []struct {
		name   string
		report *Report
		paused bool
		want   string
	}{
		{"never reported", nil, false, "Unknown NeverHeard"},
		{"connected", report(true), false, "True Connected"},
		{"untold later", nil, true, "True Connected"},
		{"disk pressure", pressed, false, "True Connected"},
		{"silent", report(false), false, "Unknown NodeSilent"},
		{"too many silent", report(false), true, "Unknown NodeSilent"},
		{"without a runtime", bare, false, "False NoRuntime"},
	} {
		s := Status(n, tc.report, tc.paused, time.Time{}, at)
		if got := ready(s); got != tc.want {
			t.Errorf("%s: Ready = %s, want %s", tc.name, got, tc.want)
		}
		n.Status = s
		if diff := cmp.Diff(s, Status(n, tc.report, tc.paused, time.Time{}, metav1.NewTime(noon.Add(time.Hour)))); diff != "" {
			t.Errorf("%s: looking again changes the status:\n%s", tc.name, diff)
		}
		if got := meta.IsStatusConditionTrue(s.Conditions, ConditionReplacementPaused); got != (tc.name == "too many silent") {
			t.Errorf("%s: paused is %v", tc.name, got)
		}
		if got := meta.IsStatusConditionTrue(s.Conditions, rikv1alpha1.NodeDiskPressure); tc.name == "disk pressure" && !got {
			t.Error("disk pressure is not said")
		}
	}
}

// TestStatusWithoutScheduler: a node that was Ready becomes Unknown. A node that was lost stays
// lost. If a node is reported as lost later, the time counts from then on.
func TestStatusWithoutScheduler(t *testing.T) {
	t.Parallel()
	lost, later := noon.Add(time.Minute), noon.Add(time.Hour)
	condition := func(n *rikv1alpha1.Node) *metav1.Condition {
		return meta.FindStatusCondition(n.Status.Conditions, rikv1alpha1.NodeReady)
	}
	look := func(n *rikv1alpha1.Node, r *Report, unheard, now time.Time) {
		n.Status = Status(n, r, false, unheard, metav1.NewTime(now))
	}
	n := Fresh("n", report(true))
	look(n, report(true), time.Time{}, noon)
	look(n, report(true), lost, lost.Add(20*time.Second))
	c := condition(n)
	if c.Status != metav1.ConditionUnknown || c.Reason != instance.ReasonSchedulerUnavailable || !strings.Contains(c.Message, "12:01:00Z") {
		t.Errorf("without a scheduler: %+v", c)
	}
	if !sameSpec(n, Shape(n, report(true))) {
		t.Error("without a scheduler the node is tainted")
	}
	before := n.DeepCopy()
	look(n, nil, later, later) // another controller, which counts from its own start
	if diff := cmp.Diff(before, n); diff != "" {
		t.Errorf("looking again changes the node:\n%s", diff)
	}
	back := n.DeepCopy()
	look(back, report(true), time.Time{}, later)
	if c := condition(back); c.Status != metav1.ConditionTrue || c.Reason != "Connected" {
		t.Errorf("reports again: %+v", c)
	}
	look(n, report(false), time.Time{}, later)
	if c := condition(n); c.Reason != reasonSilent || !c.LastTransitionTime.Time.Equal(later) {
		t.Errorf("silent after the scheduler is back: %+v, want it to count from %s", c, later)
	}
	want := Disposition{Again: time.Minute}
	if got := dispositionOf(situation{node: n, silent: true, replaceAfter: time.Minute, now: later}); got != want {
		t.Errorf("fateOf = %+v, want %+v: the deadline starts anew", got, want)
	}
	before = n.DeepCopy()
	look(n, report(false), later, later.Add(time.Minute))
	if diff := cmp.Diff(before, n); diff != "" {
		t.Errorf("without a scheduler a silent node changes:\n%s", diff)
	}
}

func TestPaused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		silent, all int
		want        bool
	}{{0, 0, false}, {0, 5, false}, {1, 1, true}, {1, 2, false}, {2, 2, true}, {1, 3, false}, {2, 6, false}, {2, 5, true}, {3, 9, false}, {4, 9, true}} {
		if got := Paused(tc.silent, tc.all); got != tc.want {
			t.Errorf("Paused(%d, %d) = %v", tc.silent, tc.all, got)
		}
	}
}

func TestDisposition(t *testing.T) {
	t.Parallel()
	silentSince := func(ago time.Duration) *rikv1alpha1.Node {
		n := Fresh("n", report(false))
		n.Status = Status(n, report(false), false, time.Time{}, metav1.NewTime(noon.Add(-ago)))
		return n
	}
	gone := Fresh("n", report(true))
	gone.DeletionTimestamp = &metav1.Time{Time: noon}
	tainted := Fresh("n", report(true))
	tainted.Spec.Taints = append(tainted.Spec.Taints, rikv1alpha1.Taint{Key: "broken", Effect: rikv1alpha1.TaintNoExecute})
	for name, tc := range map[string]struct {
		situation situation
		want      Disposition
	}{
		"no node":           {situation{}, Disposition{Lost: true, Reason: ReasonGone}},
		"a deleted node":    {situation{node: gone}, Disposition{Lost: true, Reason: ReasonGone}},
		"a good node":       {situation{node: Fresh("n", report(true))}, Disposition{}},
		"tainted":           {situation{node: tainted}, Disposition{Lost: true, Reason: ReasonTainted}},
		"tainted, tolerant": {situation{node: tainted, tolerations: []rikv1alpha1.Toleration{{Operator: rikv1alpha1.TolerationExists}}}, Disposition{}},
		"silent for a while": {situation{node: silentSince(20 * time.Second), silent: true, replaceAfter: time.Minute},
			Disposition{Again: 40 * time.Second}},
		"silent for long": {situation{node: silentSince(time.Minute), silent: true, replaceAfter: time.Minute},
			Disposition{Lost: true, Reason: ReasonUnreachable}},
		"silent, not written yet":           {situation{node: Fresh("n", report(true)), silent: true, replaceAfter: time.Minute}, Disposition{Again: time.Minute}},
		"silent, but paused":                {situation{node: silentSince(time.Hour), silent: true, paused: true, replaceAfter: time.Minute}, Disposition{}},
		"silent in an earlier session only": {situation{node: silentSince(time.Hour), replaceAfter: time.Minute}, Disposition{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.situation.now = noon
			if diff := cmp.Diff(tc.want, dispositionOf(tc.situation)); diff != "" {
				t.Errorf("fateOf (-want +got):\n%s", diff)
			}
		})
	}
}

// TestShapeIsStable: Shape is stable for any requests of a node.
func TestShapeIsStable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := report(rapid.Bool().Draw(t, "connected"))
		r.Labels = rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "labels")
		once := Fresh("n", r)
		if !sameSpec(once, Shape(once, r)) {
			t.Fatalf("%+v becomes %+v", once, Shape(once, r))
		}
	})
}

// TestSilenceOfAClockThatWasAhead: the time of a lost node counts from when the clock was
// corrected.
func TestSilenceOfAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	n := &rikv1alpha1.Node{}
	n.Status = Status(n, report(false), false, time.Time{}, metav1.NewTime(noon.Add(365*24*time.Hour)))
	n.Status = Status(n, report(false), false, time.Time{}, metav1.NewTime(noon))
	ready := meta.FindStatusCondition(n.Status.Conditions, rikv1alpha1.NodeReady)
	if ready == nil || !ready.LastTransitionTime.Time.Equal(noon) {
		t.Errorf("silent since %v, want %v", ready, noon)
	}
}
