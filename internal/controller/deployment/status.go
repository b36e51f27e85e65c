package deployment

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Reasons of conditions, as Kubernetes' own controller writes them. kubectl and other tools
// check for them.
const (
	reasonAvailable   = "MinimumReplicasAvailable"
	reasonUnavailable = "MinimumReplicasUnavailable"
	reasonComplete    = "NewReplicaSetAvailable"
	reasonProgressing = "ReplicaSetUpdated"
	reasonDeadline    = "ProgressDeadlineExceeded"
	reasonPaused      = "DeploymentPaused"
	reasonFailed      = "FailedCreate"
)

// Status returns the desired status of a Deployment. w is its own Workload or nil. The status
// describes the current generation only once the Workload has been updated to it (settled) and
// its controller has observed that. Until then the status does not change.
func Status(d *appsv1.Deployment, w *rikv1alpha1.Workload, settled bool, problem *Problem, now metav1.Time) appsv1.DeploymentStatus {
	out := *d.Status.DeepCopy()
	if problem != nil {
		out.ObservedGeneration = d.Generation
		if w == nil {
			count(&out, &rikv1alpha1.WorkloadStatus{})
		} else {
			count(&out, &w.Status)
		}
		available(d, &out, now)
		stuck(d, &out, problem, now)
		set(&out, appsv1.DeploymentReplicaFailure, corev1.ConditionTrue, problem.Reason, problem.Message, now)
		return out
	}
	if !settled || w == nil || w.Status.ObservedGeneration < w.Generation {
		return out
	}
	out.ObservedGeneration = d.Generation
	count(&out, &w.Status)
	available(d, &out, now)
	progress(&out, &w.Status, now)
	if c := meta.FindStatusCondition(w.Status.Conditions, rikv1alpha1.WorkloadReplicaFailure); c != nil && c.Status == metav1.ConditionTrue {
		set(&out, appsv1.DeploymentReplicaFailure, corev1.ConditionTrue, reasonFailed, c.Message, now)
	} else {
		remove(&out, appsv1.DeploymentReplicaFailure)
	}
	return out
}

// count copies the counts. An instance is available as soon as it is ready.
func count(out *appsv1.DeploymentStatus, w *rikv1alpha1.WorkloadStatus) {
	out.Replicas, out.UpdatedReplicas = w.Replicas, w.UpdatedReplicas
	out.ReadyReplicas, out.AvailableReplicas = w.ReadyReplicas, w.ReadyReplicas
	out.UnavailableReplicas = max(w.Replicas-w.ReadyReplicas, 0)
}

func available(d *appsv1.Deployment, out *appsv1.DeploymentStatus, now metav1.Time) {
	if out.AvailableReplicas >= least(d) {
		set(out, appsv1.DeploymentAvailable, corev1.ConditionTrue, reasonAvailable, "Deployment has minimum availability.", now)
		return
	}
	set(out, appsv1.DeploymentAvailable, corev1.ConditionFalse, reasonUnavailable, "Deployment does not have minimum availability.", now)
}

// least returns how many replicas must be available, as Kubernetes counts them: all except
// those that a rolling update may remove.
func least(d *appsv1.Deployment) int32 {
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	r := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType || r == nil || want == 0 {
		return want
	}
	surge, errSurge := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(r.MaxSurge, intstr.FromInt32(0)), int(want), true)
	unavailable, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(r.MaxUnavailable, intstr.FromInt32(0)), int(want), false)
	switch {
	case err != nil || errSurge != nil:
		return want
	case surge == 0 && unavailable == 0:
		unavailable = 1
	}
	return max(want-int32(unavailable), 0)
}

// progress translates the Workload's rollout condition to that of Kubernetes.
func progress(out *appsv1.DeploymentStatus, w *rikv1alpha1.WorkloadStatus, now metav1.Time) {
	c := meta.FindStatusCondition(w.Conditions, rikv1alpha1.WorkloadProgressing)
	if c == nil {
		return
	}
	reason := reasonProgressing
	switch {
	case c.Status == metav1.ConditionUnknown:
		reason = reasonPaused
	case c.Status == metav1.ConditionFalse:
		reason = reasonDeadline
	case c.Reason == "Complete":
		reason = reasonComplete
	}
	set(out, appsv1.DeploymentProgressing, corev1.ConditionStatus(c.Status), reason, c.Message, now)
}

// stuck reports that a problem prevents progress. It first uses the reason of the problem.
// After the progress deadline it uses the reason at which kubectl rollout status ends.
func stuck(d *appsv1.Deployment, out *appsv1.DeploymentStatus, problem *Problem, now metav1.Time) {
	reason, message := problem.Reason, problem.Message
	if before := overdue(d, problem); before != nil && now.Sub(before.LastUpdateTime.Time) >= Deadline(d) {
		reason, message = reasonDeadline, fmt.Sprintf("no progress for %s: %s", Deadline(d), problem.Message)
	}
	if before := overdue(d, problem); d.Status.ObservedGeneration != d.Generation || before != nil && before.LastUpdateTime.After(now.Time) {
		// The time counts from the new spec, or from now if the clock was ahead.
		remove(out, appsv1.DeploymentProgressing)
	}
	set(out, appsv1.DeploymentProgressing, corev1.ConditionFalse, reason, message, now)
}

// overdue returns the condition with the time since when a problem prevents the current spec
// from running. It is nil if there is no such condition yet.
func overdue(d *appsv1.Deployment, problem *Problem) *appsv1.DeploymentCondition {
	for i := range d.Status.Conditions {
		c := &d.Status.Conditions[i]
		if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && d.Status.ObservedGeneration == d.Generation &&
			(c.Reason == problem.Reason || c.Reason == reasonDeadline) && strings.HasSuffix(c.Message, problem.Message) {
			return c
		}
	}
	return nil
}

// Deadline returns how long a Deployment may make no progress.
func Deadline(d *appsv1.Deployment) time.Duration {
	seconds := int32(600) // the default of Kubernetes
	if d.Spec.ProgressDeadlineSeconds != nil {
		seconds = *d.Spec.ProgressDeadlineSeconds
	}
	return time.Duration(seconds) * time.Second
}

// Overdue returns the time until a problem has lasted for the progress deadline. It is 0 if the
// deadline has passed, or if the status does not show the problem yet.
func Overdue(d *appsv1.Deployment, problem *Problem, now time.Time) time.Duration {
	if problem == nil {
		return 0
	}
	c := overdue(d, problem)
	if c == nil || c.Reason == reasonDeadline {
		return 0
	}
	return max(Deadline(d)-now.Sub(c.LastUpdateTime.Time), time.Millisecond)
}

func set(out *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string, now metav1.Time) {
	next := appsv1.DeploymentCondition{
		Type: kind, Status: status, Reason: reason, Message: message, LastUpdateTime: now, LastTransitionTime: now,
	}
	for i, c := range out.Conditions {
		if c.Type != kind {
			continue
		}
		if c.Status == status {
			next.LastTransitionTime = c.LastTransitionTime
		}
		if c.Status != status || c.Reason != reason || c.Message != message {
			out.Conditions[i] = next
		}
		return
	}
	out.Conditions = append(out.Conditions, next)
}

func remove(out *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) {
	for i, c := range out.Conditions {
		if c.Type == kind {
			out.Conditions = append(out.Conditions[:i], out.Conditions[i+1:]...)
			return
		}
	}
}
