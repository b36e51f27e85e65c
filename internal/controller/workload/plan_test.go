package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/instance"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// member creates an instance with a name. The state "up" means running and ready.
func member(name, revision, state string) Member {
	in := &rikv1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(noon)},
		Spec:       rikv1alpha1.InstanceSpec{Revision: revision, NodeName: "node"},
	}
	m := Member{Instance: in}
	switch state {
	case "up":
		in.Status.Phase, in.Status.Ready = rikv1alpha1.InstanceRunning, true
	case "starting":
		in.Status.Phase = rikv1alpha1.InstanceCreating
	case "pending":
		in.Status.Phase, in.Spec.NodeName = rikv1alpha1.InstancePending, ""
	case "completed":
		in.Status.Phase = rikv1alpha1.InstanceCompleted
	case "failed":
		in.Status.Phase = rikv1alpha1.InstanceFailed
		at := metav1.NewTime(noon.Add(-time.Hour))
		in.Status.FinishedAt, in.CreationTimestamp = &at, metav1.NewTime(noon.Add(-2*time.Hour))
	case "lost":
		in.Status.Phase = rikv1alpha1.InstanceUnknown
		m.Lost, m.Reason = true, "NodeUnreachable"
	case "ending":
		in.Status.Phase, m.Ending = rikv1alpha1.InstanceDestroying, true
	default:
		panic("programmer error: no state " + state)
	}
	return m
}

func spec(replicas int32, change func(*rikv1alpha1.WorkloadSpec)) *rikv1alpha1.WorkloadSpec {
	one, none := intstr.FromInt32(1), intstr.FromInt32(0)
	s := &rikv1alpha1.WorkloadSpec{
		Deploy: rikv1alpha1.DeployAutomatic, Replicas: &replicas,
		Strategy: rikv1alpha1.UpdateStrategy{Type: rikv1alpha1.RollingUpdate, MaxSurge: &one, MaxUnavailable: &none},
	}
	s.RestartPolicy = rikv1alpha1.RestartAlways
	if change != nil {
		change(s)
	}
	return s
}

// outcome is a plan in a form for test tables.
type outcome struct {
	Create []string
	Delete []string
	Again  time.Duration
}

func outcomeOf(p Plan) outcome {
	var o outcome
	for _, c := range p.Create {
		o.Create = append(o.Create, fmt.Sprint(c.Revision, "<", c.Replaces))
	}
	for _, d := range p.Delete {
		o.Delete = append(o.Delete, d.Instance.Name)
	}
	o.Again = p.Again
	return o
}

func TestMake(t *testing.T) {
	t.Parallel()
	never := func(s *rikv1alpha1.WorkloadSpec) { s.RestartPolicy = rikv1alpha1.RestartNever }
	onFailure := func(s *rikv1alpha1.WorkloadSpec) { s.RestartPolicy = rikv1alpha1.RestartOnFailure }
	manual := func(s *rikv1alpha1.WorkloadSpec) { s.Deploy = rikv1alpha1.DeployManual }
	paused := func(s *rikv1alpha1.WorkloadSpec) { s.Paused = true }
	recreate := func(s *rikv1alpha1.WorkloadSpec) { s.Strategy.Type = rikv1alpha1.Recreate }
	standstill := func(s *rikv1alpha1.WorkloadSpec) {
		none := intstr.FromInt32(0)
		s.Strategy.MaxSurge = &none
	}
	justFailed := member("a", "new", "failed")
	justFailed.Instance.Status.FinishedAt = &metav1.Time{Time: noon.Add(-4 * time.Second)}
	replacement := member("b", "old", "starting")
	replacement.Instance.Spec.Replaces = "uid-a"
	for name, tc := range map[string]struct {
		spec    *rikv1alpha1.WorkloadSpec
		members []Member
		want    outcome
	}{
		"from nothing":        {spec(2, nil), nil, outcome{Create: []string{"new<", "new<"}}},
		"default replicas":    {spec(1, func(s *rikv1alpha1.WorkloadSpec) { s.Replicas = nil }), nil, outcome{Create: []string{"new<"}}},
		"negative replicas":   {spec(-3, nil), nil, outcome{}},
		"all there":           {spec(2, nil), []Member{member("a", "new", "up"), member("b", "new", "starting")}, outcome{}},
		"one ending":          {spec(2, nil), []Member{member("a", "new", "up"), member("b", "new", "ending")}, outcome{Create: []string{"new<"}}},
		"scale down: pending": {spec(1, nil), []Member{member("a", "new", "up"), member("b", "new", "pending")}, outcome{Delete: []string{"b"}}},
		"scale down: unready": {spec(1, nil), []Member{member("a", "new", "starting"), member("b", "new", "up")}, outcome{Delete: []string{"a"}}},
		"to zero":             {spec(0, nil), []Member{member("a", "new", "up")}, outcome{Delete: []string{"a"}}},
		"roll: surge first": {spec(2, nil), []Member{member("a", "old", "up"), member("b", "old", "up")},
			outcome{Create: []string{"new<"}}},
		"roll: wait for the new one": {spec(2, nil), []Member{member("a", "old", "up"), member("b", "old", "up"), member("c", "new", "starting")}, outcome{}},
		"roll: one out when one is in": {spec(2, nil), []Member{member("a", "old", "up"), member("b", "old", "up"), member("c", "new", "up")},
			outcome{Create: []string{"new<"}, Delete: []string{"a"}}},
		"roll: an unready old one first": {spec(2, nil), []Member{member("a", "old", "up"), member("b", "old", "starting"), member("c", "new", "up")},
			outcome{Create: []string{"new<"}, Delete: []string{"b"}}},
		"roll: no standstill": {spec(2, standstill), []Member{member("a", "old", "up"), member("b", "old", "up")}, outcome{Create: []string{"new<"}, Delete: []string{"a"}}},
		"roll and scale down": {spec(1, nil), []Member{member("a", "old", "up"), member("b", "old", "up"), member("c", "old", "up")},
			outcome{Create: []string{"new<"}, Delete: []string{"a", "b"}}},
		"recreate: all out":     {spec(2, recreate), []Member{member("a", "old", "up"), member("b", "old", "up")}, outcome{Delete: []string{"a", "b"}}},
		"recreate: wait":        {spec(2, recreate), []Member{member("a", "old", "ending")}, outcome{}},
		"recreate: then in":     {spec(2, recreate), nil, outcome{Create: []string{"new<", "new<"}}},
		"paused holds":          {spec(2, paused), []Member{member("a", "old", "up"), member("b", "old", "up")}, outcome{}},
		"paused scales the old": {spec(3, paused), []Member{member("a", "old", "up"), member("b", "old", "up")}, outcome{Create: []string{"old<"}}},
		"lost":                  {spec(1, nil), []Member{member("a", "new", "lost")}, outcome{Create: []string{"new<uid-a"}, Delete: []string{"a"}}},
		"lost of an old revision": {spec(1, nil), []Member{member("a", "old", "lost")},
			outcome{Create: []string{"new<"}, Delete: []string{"a"}}},
		"manual stays":            {spec(5, manual), []Member{member("a", "old", "up"), member("b", "old", "failed")}, outcome{}},
		"manual lost":             {spec(5, manual), []Member{member("a", "old", "lost")}, outcome{Create: []string{"old<uid-a"}, Delete: []string{"a"}}},
		"manual lost, replaced":   {spec(5, manual), []Member{member("a", "old", "lost"), replacement}, outcome{Delete: []string{"a"}}},
		"failed is replaced":      {spec(1, nil), []Member{member("a", "new", "failed")}, outcome{Create: []string{"new<"}}},
		"failed just now":         {spec(1, nil), []Member{justFailed}, outcome{Again: 6 * time.Second}},
		"never retries nothing":   {spec(2, never), []Member{member("a", "new", "failed"), member("b", "new", "completed")}, outcome{}},
		"on failure, completed":   {spec(2, onFailure), []Member{member("a", "new", "completed")}, outcome{Create: []string{"new<"}}},
		"completed of old":        {spec(1, never), []Member{member("a", "old", "completed")}, outcome{Create: []string{"new<"}, Delete: []string{"a"}}},
		"always replaces the end": {spec(1, nil), []Member{member("a", "new", "completed")}, outcome{Create: []string{"new<"}, Again: 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := noon
			if name == "always replaces the end" {
				now = noon.Add(time.Hour)
			}
			got := outcomeOf(Make(Situation{Spec: tc.spec, Revision: "new", Members: tc.members, Now: now}))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Make (-want +got):\n%s", diff)
			}
		})
	}
}

// failedAt is an instance that failed at a time after noon.
func failedAt(name string, after time.Duration) Member {
	m := member(name, "new", "failed")
	m.Instance.Status.FinishedAt = &metav1.Time{Time: noon.Add(after)}
	return m
}

// TestFailuresBackOffAndAreBounded: instances fail one after the other, each as soon as it is
// started.
func TestFailuresBackOffAndAreBounded(t *testing.T) {
	t.Parallel()
	want := []time.Duration{10, 20, 40, 80, 160, 160, 160, 160}
	for _, together := range []int{1, 3, 7} {
		var members []Member
		now := noon
		for wave, pause := range want {
			for i := range together {
				m := failedAt(fmt.Sprintf("f%d-%d", wave, i), now.Sub(noon)+time.Duration(i)*time.Second)
				members = append(members, m)
			}
			now = now.Add(time.Duration(together) * time.Second)
			replicas := int32(together)
			s := Situation{Spec: spec(replicas, nil), Revision: "new", Members: members, Now: now}
			p := Make(s)
			if left := pause*time.Second - time.Duration(together)*time.Second; p.Again != left || len(p.Create) > 0 {
				t.Errorf("%d at once, wave %d: %d are created, the rest in %s, want none and %s", together, wave, len(p.Create), p.Again, left)
			}
			gone := map[string]bool{}
			for _, d := range p.Delete {
				gone[d.Instance.Name] = true
			}
			members = slices.DeleteFunc(members, func(m Member) bool { return gone[m.Instance.Name] })
			if len(members) > keptFailures || len(members) < min(keptFailures, (wave+1)*together) {
				t.Errorf("%d at once, wave %d: %d are kept, want %d", together, wave, len(members), keptFailures)
			}
			s.Members = members
			if again := Make(s); !again.Empty() || again.Again != p.Again {
				t.Errorf("%d at once, wave %d: planned again: %+v", together, wave, outcomeOf(again))
			}
			now = now.Add(p.Again)
		}
	}
}

func TestBackOff(t *testing.T) {
	t.Parallel()
	stopped := failedAt("c", 5*time.Second)
	stopped.Instance.Status.Reason = instance.ReasonStoppedByNode
	forgotten := failedAt("d", 5*time.Second)
	forgotten.Instance.Status.Reason = instance.ReasonNotHere
	// Created when the first delay was over, on a node whose clock is a minute slow.
	slow := failedAt("e", -50*time.Second)
	slow.Instance.CreationTimestamp = metav1.NewTime(noon.Add(10*time.Second + 300*time.Millisecond))
	for name, tc := range map[string]struct {
		members []Member
		failed  int
		until   time.Duration // after noon
	}{
		"one":                         {[]Member{failedAt("a", 0)}, 1, 10 * time.Second},
		"two at once":                 {[]Member{failedAt("a", 0), failedAt("b", 0)}, 2, 10 * time.Second},
		"two in one pause":            {[]Member{failedAt("a", 0), failedAt("b", 9*time.Second)}, 2, 10 * time.Second},
		"one after the other":         {[]Member{failedAt("a", 0), failedAt("b", 10*time.Second)}, 2, 30 * time.Second},
		"one long after the other":    {[]Member{failedAt("a", 0), failedAt("b", steady)}, 2, steady + 20*time.Second},
		"the other began anew":        {[]Member{failedAt("a", 0), failedAt("b", steady+11*time.Second)}, 1, steady + 21*time.Second},
		"stopped by their nodes":      {[]Member{stopped, forgotten}, 0, 0},
		"one, and two by their nodes": {[]Member{failedAt("a", 0), stopped, forgotten}, 1, 10 * time.Second},
		"a slow clock":                {[]Member{failedAt("a", 0), slow}, 2, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := sortMembers(Situation{Spec: spec(5, nil), Revision: "new", Members: tc.members, Now: noon}).backOff()
			want := time.Time{}
			if tc.failed > 0 {
				want = noon.Add(tc.until)
			}
			if got.failed != tc.failed || !got.until.Equal(want) {
				t.Errorf("backOff = %d failed, until %s, want %d and %s", got.failed, got.until, tc.failed, want)
			}
		})
	}
}

func TestExpiredAndTarget(t *testing.T) {
	t.Parallel()
	var all []*rikv1alpha1.WorkloadRevision
	for i := range int64(6) {
		all = append(all, &rikv1alpha1.WorkloadRevision{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("r", i+1)}, Revision: i + 1})
	}
	names := func(list []*rikv1alpha1.WorkloadRevision) (out []string) {
		for _, r := range list {
			out = append(out, r.Name)
		}
		return out
	}
	used := map[string]bool{"r1": true}
	for limit, want := range map[int][]string{
		0: {"r2", "r3", "r4", "r5"}, 1: {"r2", "r3", "r4"}, 3: {"r2"}, 4: nil, 10: nil, -1: {"r2", "r3", "r4", "r5"},
	} {
		if diff := cmp.Diff(want, names(Expired(all, used, "r6", limit))); diff != "" {
			t.Errorf("Expired with limit %d (-want +got):\n%s", limit, diff)
		}
	}
	if got := Target(all, "r6", 0); got.Name != "r5" {
		t.Errorf("Target(0) = %s, want the one before", got.Name)
	}
	if got := Target(all, "r6", 2); got.Name != "r2" {
		t.Errorf("Target(2) = %s", got.Name)
	}
	if got := Target(all, "r6", 99); got != nil {
		t.Errorf("Target(99) = %s, want none", got.Name)
	}
	if got := Target(all[:1], "r1", 0); got != nil {
		t.Errorf("Target of a single revision = %s, want none", got.Name)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	w := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 2}, Spec: *spec(2, nil)}
	look := func(now time.Time, members ...Member) (rikv1alpha1.WorkloadStatus, time.Duration) {
		return Status(w, Situation{Spec: &w.Spec, Revision: "new", Members: members, Now: now}, nil)
	}
	reason := func(s rikv1alpha1.WorkloadStatus) string {
		for _, c := range s.Conditions {
			if c.Type == rikv1alpha1.WorkloadProgressing {
				return c.Reason
			}
		}
		return ""
	}
	first, again := look(noon, member("a", "new", "starting"))
	if reason(first) != "Progressing" || again != 600*time.Second {
		t.Errorf("at first: %q again in %s", reason(first), again)
	}
	w.Status = first
	second, _ := look(noon.Add(time.Minute), member("a", "new", "starting"))
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("looking again changes the status:\n%s", diff)
	}
	stuck, _ := look(noon.Add(601*time.Second), member("a", "new", "starting"))
	if reason(stuck) != "ProgressDeadlineExceeded" {
		t.Errorf("after the deadline: %q", reason(stuck))
	}
	w.Status = stuck
	moved, _ := look(noon.Add(700*time.Second), member("a", "new", "up"))
	if reason(moved) != "Progressing" {
		t.Errorf("after progress: %q", reason(moved))
	}
	w.Status = moved
	done, again := look(noon.Add(701*time.Second), member("a", "new", "up"), member("b", "new", "up"))
	if reason(done) != "Complete" || again != 0 {
		t.Errorf("at the end: %q again in %s", reason(done), again)
	}
	w.Status = done
	flap, _ := look(noon.Add(10_000*time.Second), member("a", "new", "up"), member("b", "new", "starting"))
	if reason(flap) != "Complete" || flap.ReadyReplicas != 1 {
		t.Errorf("an instance that is unready later: %q, %d ready", reason(flap), flap.ReadyReplicas)
	}
}

// TestConditions checks the conditions of workloads whose instances end.
func TestConditions(t *testing.T) {
	t.Parallel()
	ended := func(state string, n int) (out []Member) {
		for i := range n {
			out = append(out, member(fmt.Sprint(state, i), "new", state))
		}
		return out
	}
	never := func(s *rikv1alpha1.WorkloadSpec) {
		s.RestartPolicy, s.Strategy = rikv1alpha1.RestartNever, rikv1alpha1.UpdateStrategy{}
	}
	enough, complete := "True EnoughReady: enough instances are ready", "True Complete: the rollout of revision new is complete"
	allOf := func(failed, all int) string {
		return fmt.Sprintf("False InstancesFailed: %d of %d instances failed, and restartPolicy Never does not start them again", failed, all)
	}
	for name, tc := range map[string]struct {
		spec                   *rikv1alpha1.WorkloadSpec
		members                []Member
		available, progressing string
	}{
		"one failed for good":    {spec(1, never), ended("failed", 1), allOf(1, 1), allOf(1, 1)},
		"five failed for good":   {spec(5, never), ended("failed", 5), allOf(5, 5), allOf(5, 5)},
		"one of five did":        {spec(5, never), append(ended("up", 4), ended("failed", 1)...), enough, allOf(1, 5)},
		"one did, others did it": {spec(2, never), append(ended("completed", 1), ended("failed", 1)...), allOf(1, 2), allOf(1, 2)},
		"all did their work":     {spec(2, never), ended("completed", 2), enough, complete},
		"as many as are wanted":  {spec(2, never), append(ended("completed", 2), ended("failed", 1)...), enough, complete},
		"no more is wanted":      {spec(0, never), ended("failed", 2), enough, complete},
		"failed just now": {spec(2, nil), append(ended("up", 1), failedAt("a", -4*time.Second)),
			"False TooFewReady: too few instances are ready", "True Progressing: the rollout of revision new is in progress; an instance failed, and the next one starts at 2026-01-01T12:00:06Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 1}, Spec: *tc.spec}
			s := Situation{Spec: tc.spec, Revision: "new", Members: tc.members, Now: noon}
			w.Status, _ = Status(w, s, nil)
			for kind, want := range map[string]string{rikv1alpha1.WorkloadAvailable: tc.available, rikv1alpha1.WorkloadProgressing: tc.progressing} {
				c := meta.FindStatusCondition(w.Status.Conditions, kind)
				if got := fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message); got != want {
					t.Errorf("%s = %s, want %s", kind, got, want)
				}
			}
			again, _ := Status(w, s, nil)
			if diff := cmp.Diff(w.Status, again); diff != "" {
				t.Errorf("looking again changes the status:\n%s", diff)
			}
		})
	}
}

// TestBackOffIsInTheCondition: the condition of a rolled-out workload shows the delay while it lasts.
func TestBackOffIsInTheCondition(t *testing.T) {
	t.Parallel()
	w := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 1}, Spec: *spec(2, nil)}
	look := func(after time.Duration, members ...Member) *metav1.Condition {
		w.Status, _ = Status(w, Situation{Spec: &w.Spec, Revision: "new", Members: members, Now: noon.Add(after)}, nil)
		return meta.FindStatusCondition(w.Status.Conditions, rikv1alpha1.WorkloadProgressing)
	}
	look(0, member("a", "new", "up"), member("b", "new", "up"))
	c := look(2*time.Second, failedAt("a", time.Second), failedAt("b", time.Second))
	if want := "the rollout of revision new is complete; 2 instances failed, and the next one starts at 2026-01-01T12:00:11Z"; c.Reason != "Complete" || c.Message != want {
		t.Errorf("held back: %s: %s, want %s", c.Reason, c.Message, want)
	}
	c = look(12*time.Second, failedAt("a", time.Second), failedAt("b", time.Second), member("c", "new", "pending"), member("d", "new", "pending"))
	if strings.Contains(c.Message, "failed") {
		t.Errorf("started again: %s", c.Message)
	}
}

// TestFutureTimesAreIgnored: an instance that failed while the clock was ahead does not
// delay others. The deadline of a rollout that began then counts from now on.
func TestFutureTimesAreIgnored(t *testing.T) {
	t.Parallel()
	p := Make(Situation{Spec: spec(1, nil), Revision: "new", Members: []Member{failedAt("f", 365*24*time.Hour)}, Now: noon})
	if len(p.Create) != 1 {
		t.Errorf("%d are created, again in %s, want one at once", len(p.Create), p.Again)
	}
	w := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 2}, Spec: *spec(2, nil)}
	look := func(now time.Time) (rikv1alpha1.WorkloadStatus, time.Duration) {
		return Status(w, Situation{Spec: &w.Spec, Revision: "new", Members: []Member{member("a", "new", "starting")}, Now: now}, nil)
	}
	w.Status, _ = look(noon.Add(365 * 24 * time.Hour))
	var again time.Duration
	if w.Status, again = look(noon); again != 600*time.Second {
		t.Errorf("after the clock was set right: again in %s, want the whole deadline", again)
	}
	if _, again = look(noon.Add(time.Minute)); again != 540*time.Second {
		t.Errorf("a minute later: again in %s, want what is left", again)
	}
}
