package deployment_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	translation "rik.dev/rik/api/rik/deployment"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/deployment"
)

func pointer[T any](v T) *T { return &v }

// wanted is a Deployment of four replicas in its third generation.
func wanted() *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "d1", Generation: 3},
		Spec: appsv1.DeploymentSpec{
			Replicas: pointer(int32(4)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxSurge: pointer(intstr.FromString("25%")), MaxUnavailable: pointer(intstr.FromString("25%")),
			}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:1"}}},
			},
		},
	}
}

// stored is the Workload of a Deployment.
func stored(d *appsv1.Deployment) *rikv1alpha1.Workload {
	w := translation.Workload(d)
	w.UID, w.ResourceVersion, w.Generation, w.Status.ObservedGeneration = "w1", "7", 2, 2
	w.Finalizers = []string{rikv1alpha1.FinalizerWorkload}
	return w
}

func TestDecide(t *testing.T) {
	t.Parallel()
	type fixture struct {
		d *appsv1.Deployment
		w *rikv1alpha1.Workload
	}
	for _, tc := range []struct {
		name   string
		change func(*fixture)
		want   string
	}{
		{"nothing there", func(s *fixture) { s.w = nil }, "create"},
		{"as asked", func(*fixture) {}, ""},
		{"marks of tools that an earlier version copied", func(s *fixture) {
			s.d.Spec.Template.Labels["applyset.kubernetes.io/part-of"] = "x"
			s.w = stored(s.d)
			s.w.Labels = map[string]string{"app": "web", "applyset.kubernetes.io/part-of": "x"}
		}, "update"},
		{"annotations of others stay", func(s *fixture) { s.w.Annotations["note"] = "x" }, ""},
		{"deployment scaled", func(s *fixture) { s.d.Spec.Replicas = pointer(int32(9)) }, "update"},
		{"workload scaled by hand", func(s *fixture) { s.w.Spec.Replicas = pointer(int32(1)) }, "update"},
		{"workload stopped by hand", func(s *fixture) { s.w.Spec.Deploy = rikv1alpha1.DeployManual }, "update"},
		{"image changed by hand", func(s *fixture) { s.w.Spec.Containers[0].Image = "other" }, "update"},
		{"label taken away", func(s *fixture) { s.w.Labels = nil }, "update"},
		{"fence asked for", func(s *fixture) { s.d.Annotations = map[string]string{"workloads.kcp.dev/fence-after": "30s"} }, "update"},
		{"fence no longer asked for", func(s *fixture) { s.w.Annotations["workloads.kcp.dev/fence-after"] = "30s" }, "update"},
		{"not honored", func(s *fixture) { s.d.Spec.MinReadySeconds = 5 }, "NotHonoured spec.minReadySeconds"},
		{"somebody's workload", func(s *fixture) { s.w.OwnerReferences, s.w.Annotations = nil, nil }, "NameTaken did not create it"},
		{"another controller's", func(s *fixture) { s.w.OwnerReferences[0].Kind, s.w.OwnerReferences[0].UID = "Chart", "c1" }, "NameTaken belongs to Chart"},
		{"orphaned by a deployment of the name", func(s *fixture) { s.w.OwnerReferences = nil }, "update"},
		{"orphaned, and asked for otherwise now", func(s *fixture) { s.w.OwnerReferences, s.d.Spec.Replicas = nil, pointer(int32(9)) }, "update"},
		{"owned, not controlled", func(s *fixture) { s.w.OwnerReferences[0].Controller = nil }, "update"},
		{"orphan that is selected by nothing", func(s *fixture) {
			s.w.OwnerReferences, s.w.Spec.Labels = nil, map[string]string{"app": "other"}
		}, "NameTaken do not match the selector"},
		{"orphan that is being deleted", func(s *fixture) {
			s.w.OwnerReferences, s.w.DeletionTimestamp = nil, &metav1.Time{Time: time.Unix(9, 0)}
		}, "NameTaken"},
		{"that of an earlier one", func(s *fixture) { s.d.UID = "d2" }, "NameTaken earlier"},
		{"workload being deleted", func(s *fixture) { s.w.DeletionTimestamp = &metav1.Time{Time: time.Unix(9, 0)}; s.w.Spec.Replicas = nil }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := fixture{d: wanted(), w: stored(wanted())}
			tc.change(&s)
			action := deployment.Decide(s.d, s.w)
			if got := word(action); !fits(got, tc.want) {
				t.Fatalf("Decide() = %q, want %q", got, tc.want)
			}
			if action.Update == nil {
				return
			}
			if action.Update.ResourceVersion != "7" || len(action.Update.Finalizers) != 1 {
				t.Errorf("the update forgets what is stored: %+v", action.Update.ObjectMeta)
			}
			if refs := action.Update.OwnerReferences; len(refs) != 1 || !metav1.IsControlledBy(action.Update, s.d) {
				t.Errorf("the owners are %v, want the Deployment", refs)
			}
			if again := word(deployment.Decide(s.d, action.Update)); again != "" {
				t.Errorf("after the update Decide() = %q, want nothing", again)
			}
		})
	}
}

// TestMarksOfTools: the instances have the labels of the template. The Workload does not have
// the labels by which tools such as Helm recognize their objects, because no tool created it.
func TestMarksOfTools(t *testing.T) {
	t.Parallel()
	d := wanted()
	d.Spec.Template.Labels = map[string]string{"app": "web", "app.kubernetes.io/managed-by": "Helm", "applyset.kubernetes.io/part-of": "x"}
	w := translation.Workload(d)
	if diff := cmp.Diff(map[string]string{"app": "web"}, w.Labels); diff != "" {
		t.Errorf("labels of the Workload (want, got):\n%s", diff)
	}
	if diff := cmp.Diff(d.Spec.Template.Labels, w.Spec.Labels); diff != "" {
		t.Errorf("labels of its instances (want, got):\n%s", diff)
	}
}

func word(a deployment.Action) string {
	switch {
	case a.Create != nil:
		return "create"
	case a.Update != nil:
		return "update"
	case a.Problem != nil:
		return a.Problem.Reason + " " + a.Problem.Message
	}
	return ""
}

// fits compares the first word, and searches for the other words.
func fits(got, want string) bool {
	first, rest, _ := strings.Cut(want, " ")
	gotFirst, gotRest, _ := strings.Cut(got, " ")
	return first == gotFirst && strings.Contains(gotRest, rest)
}

var now = metav1.NewTime(time.Unix(1000, 0))

// seen sets the status of a Workload.
func seen(w *rikv1alpha1.Workload, replicas, updated, ready int32, status metav1.ConditionStatus, reason string) *rikv1alpha1.Workload {
	w.Status.Replicas, w.Status.UpdatedReplicas, w.Status.ReadyReplicas = replicas, updated, ready
	w.Status.Conditions = []metav1.Condition{{Type: rikv1alpha1.WorkloadProgressing, Status: status, Reason: reason, Message: "so"}}
	return w
}

// conditions formats conditions as TYPE=STATUS/REASON.
func conditions(s appsv1.DeploymentStatus) string {
	var out []string
	for _, c := range s.Conditions {
		out = append(out, string(c.Type)+"="+string(c.Status)+"/"+c.Reason)
	}
	return strings.Join(out, " ")
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		d        *appsv1.Deployment
		w        *rikv1alpha1.Workload
		settled  bool
		problem  *deployment.Problem
		observed int64
		want     string
	}{
		{name: "not made yet", want: ""},
		{name: "just changed", w: seen(stored(wanted()), 4, 4, 4, "True", "Complete"), want: ""},
		{name: "change not seen", w: func() *rikv1alpha1.Workload {
			w := seen(stored(wanted()), 4, 4, 4, "True", "Complete")
			w.Generation++
			return w
		}(), settled: true, want: ""},
		{name: "rolling out", w: seen(stored(wanted()), 4, 2, 2, "True", "Progressing"), settled: true, observed: 3,
			want: "Available=False/MinimumReplicasUnavailable Progressing=True/ReplicaSetUpdated"},
		{name: "enough", w: seen(stored(wanted()), 5, 3, 3, "True", "Progressing"), settled: true, observed: 3,
			want: "Available=True/MinimumReplicasAvailable Progressing=True/ReplicaSetUpdated"},
		{name: "complete", w: seen(stored(wanted()), 4, 4, 4, "True", "Complete"), settled: true, observed: 3,
			want: "Available=True/MinimumReplicasAvailable Progressing=True/NewReplicaSetAvailable"},
		{name: "stuck", w: seen(stored(wanted()), 4, 1, 3, "False", "ProgressDeadlineExceeded"), settled: true, observed: 3,
			want: "Available=True/MinimumReplicasAvailable Progressing=False/ProgressDeadlineExceeded"},
		{name: "paused", w: seen(stored(wanted()), 4, 0, 4, "Unknown", "Paused"), settled: true, observed: 3,
			want: "Available=True/MinimumReplicasAvailable Progressing=Unknown/DeploymentPaused"},
		{name: "recreated", d: func() *appsv1.Deployment {
			d := wanted()
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
			return d
		}(), w: seen(stored(wanted()), 4, 4, 3, "True", "Progressing"), settled: true, observed: 3,
			want: "Available=False/MinimumReplicasUnavailable Progressing=True/ReplicaSetUpdated"},
		{name: "name taken", problem: &deployment.Problem{Reason: "NameTaken", Message: "m"}, observed: 3,
			want: "Available=False/MinimumReplicasUnavailable Progressing=False/NameTaken ReplicaFailure=True/NameTaken"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := tc.d
			if d == nil {
				d = wanted()
			}
			got := deployment.Status(d, tc.w, tc.settled, tc.problem, now)
			if conditions(got) != tc.want || got.ObservedGeneration != tc.observed {
				t.Fatalf("Status() = generation %d, %s; want %d, %s", got.ObservedGeneration, conditions(got), tc.observed, tc.want)
			}
			if tc.w != nil && tc.observed > 0 && (got.Replicas != tc.w.Status.Replicas || got.UpdatedReplicas != tc.w.Status.UpdatedReplicas ||
				got.AvailableReplicas != tc.w.Status.ReadyReplicas || got.UnavailableReplicas != got.Replicas-got.ReadyReplicas) {
				t.Errorf("counts: %+v", got)
			}
			d.Status = got
			if tc.problem != nil {
				return // see TestStatusOfAProblem
			}
			later := metav1.NewTime(now.Add(time.Hour))
			if diff := cmp.Diff(got, deployment.Status(d, tc.w, tc.settled, tc.problem, later)); diff != "" {
				t.Errorf("the same an hour later is written again:\n%s", diff)
			}
		})
	}
}

// TestStatusOfAProblem: a Deployment that cannot run exceeds its deadline, at which kubectl
// rollout status ends. The time starts again with a new spec.
func TestStatusOfAProblem(t *testing.T) {
	t.Parallel()
	d, problem := wanted(), &deployment.Problem{Reason: "NameTaken", Message: "delete it"}
	d.Spec.ProgressDeadlineSeconds = pointer(int32(60))
	said := func(after time.Duration) string {
		d.Status = deployment.Status(d, nil, false, problem, metav1.NewTime(now.Add(after)))
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentProgressing {
				return string(c.Status) + " " + c.Reason + " " + c.Message
			}
		}
		return ""
	}
	for _, tc := range []struct {
		after      time.Duration
		generation int64
		want       string
		next       time.Duration
	}{
		{0, 3, "False NameTaken delete it", time.Minute},
		{59 * time.Second, 3, "False NameTaken delete it", time.Second},
		{time.Minute, 3, "False ProgressDeadlineExceeded no progress for 1m0s: delete it", 0},
		{time.Hour, 3, "False ProgressDeadlineExceeded no progress for 1m0s: delete it", 0},
		{2 * time.Hour, 4, "False NameTaken delete it", time.Minute},
		{2*time.Hour + time.Minute, 4, "False ProgressDeadlineExceeded no progress for 1m0s: delete it", 0},
	} {
		d.Generation = tc.generation
		if got := said(tc.after); got != tc.want {
			t.Errorf("after %s: %q, want %q", tc.after, got, tc.want)
		}
		if next := deployment.Overdue(d, problem, now.Add(tc.after)); next != tc.next {
			t.Errorf("after %s: look again in %s, want %s", tc.after, next, tc.next)
		}
	}
}

// TestStatusRecovers: a problem disappears from the status when it is solved. The transition
// time is that of the changed status.
func TestStatusRecovers(t *testing.T) {
	t.Parallel()
	d := wanted()
	d.Status = deployment.Status(d, nil, false, &deployment.Problem{Reason: "NameTaken", Message: "m"}, now)
	later := metav1.NewTime(now.Add(time.Minute))
	got := deployment.Status(d, seen(stored(wanted()), 4, 4, 4, "True", "Complete"), true, nil, later)
	if want := "Available=True/MinimumReplicasAvailable Progressing=True/NewReplicaSetAvailable"; conditions(got) != want {
		t.Errorf("Status() = %s, want %s", conditions(got), want)
	}
	for _, c := range got.Conditions {
		if !c.LastTransitionTime.Equal(&later) {
			t.Errorf("%s changed at %s, want %s", c.Type, c.LastTransitionTime, later)
		}
	}
}

// TestAProblemOfAClockThatWasAhead: the deadline of a problem counts from when the clock was
// corrected.
func TestAProblemOfAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	d, problem := wanted(), &deployment.Problem{Reason: "NameTaken", Message: "delete it"}
	d.Spec.ProgressDeadlineSeconds = pointer(int32(60))
	d.Status = deployment.Status(d, nil, false, problem, metav1.NewTime(now.Add(365*24*time.Hour)))
	d.Status = deployment.Status(d, nil, false, problem, now)
	if next := deployment.Overdue(d, problem, now.Time); next != time.Minute {
		t.Errorf("look again in %s, want the whole deadline", next)
	}
}
