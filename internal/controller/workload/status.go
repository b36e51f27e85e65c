package workload

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Status returns the desired status of a workload, and the time after which it changes without
// an event. failure says why instances could not be created.
func Status(w *rikv1alpha1.Workload, s Situation, failure error) (rikv1alpha1.WorkloadStatus, time.Duration) {
	out := *w.Status.DeepCopy()
	countInstances(&out, s)
	out.ObservedGeneration = w.Generation
	out.CurrentRevision = s.Revision
	out.Selector = rikv1alpha1.LabelWorkload + "=" + w.Name
	now := metav1.NewTime(s.Now)
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&out.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message,
			LastTransitionTime: now, ObservedGeneration: w.Generation,
		})
	}
	available(&out, s, set)
	if s.Fenced != "" {
		set(ConditionFenced, metav1.ConditionTrue, "NoContact", s.Fenced)
	} else {
		meta.RemoveStatusCondition(&out.Conditions, ConditionFenced)
	}
	if failure != nil {
		set(rikv1alpha1.WorkloadReplicaFailure, metav1.ConditionTrue, "CreateFailed", failure.Error())
	} else {
		meta.RemoveStatusCondition(&out.Conditions, rikv1alpha1.WorkloadReplicaFailure)
	}
	if s.Spec.Deploy != rikv1alpha1.DeployAutomatic {
		meta.RemoveStatusCondition(&out.Conditions, rikv1alpha1.WorkloadProgressing)
		return out, 0
	}
	return out, progress(&out, &w.Status, s, set)
}

// ConditionFenced is True while a workload of a kcp is stopped because there is no contact with
// the kcp.
const ConditionFenced = "Fenced"

// ConditionAddressFailure is True while a workload serves ports and no virtual address is left
// for it.
const ConditionAddressFailure = "AddressFailure"

// addressed sets the addresses, or the condition that says why the virtual one is missing.
func addressed(out *rikv1alpha1.WorkloadStatus, addresses []string, problem string, now metav1.Time) {
	out.Addresses = addresses
	if problem == "" {
		meta.RemoveStatusCondition(&out.Conditions, ConditionAddressFailure)
		return
	}
	meta.SetStatusCondition(&out.Conditions, metav1.Condition{
		Type: ConditionAddressFailure, Status: metav1.ConditionTrue, Reason: "AddressesExhausted", Message: problem,
		LastTransitionTime: now, ObservedGeneration: out.ObservedGeneration,
	})
}

func countInstances(out *rikv1alpha1.WorkloadStatus, s Situation) {
	out.Replicas, out.ReadyReplicas, out.UpdatedReplicas = 0, 0, 0
	out.PendingReplicas, out.FailedReplicas, out.CompletedReplicas = 0, 0, 0
	for _, m := range s.Members {
		if m.Ending {
			continue
		}
		switch m.Instance.Status.Phase {
		case rikv1alpha1.InstanceCompleted:
			out.CompletedReplicas++
			continue
		case rikv1alpha1.InstanceFailed, rikv1alpha1.InstanceTerminated:
			out.FailedReplicas++
			continue
		}
		out.Replicas++
		if m.Instance.Spec.Revision == s.Revision {
			out.UpdatedReplicas++
		}
		if m.Instance.Spec.NodeName == "" {
			out.PendingReplicas++
		}
		if ready(m) {
			out.ReadyReplicas++
		}
	}
}

type setter func(kind string, status metav1.ConditionStatus, reason, message string)

// available compares the ready instances with the number that should be ready: the requested
// number, without the instances that have completed. For a Manual workload that is the number
// that exists.
func available(out *rikv1alpha1.WorkloadStatus, s Situation, set setter) {
	least, failed := int(out.Replicas), 0
	if s.Spec.Deploy == rikv1alpha1.DeployAutomatic {
		g := sortMembers(s)
		want := max(replicas(s.Spec)-g.filled+g.failed, 0)
		_, unavailable := bounds(&s.Spec.Strategy, want)
		least, failed = max(want-unavailable, 0), g.missing()
	}
	switch {
	case s.Spec.Deploy != rikv1alpha1.DeployAutomatic && out.Replicas == 0:
		set(rikv1alpha1.WorkloadAvailable, metav1.ConditionFalse, "NoInstances", "the workload requests no instances")
	case s.Fenced != "":
		set(rikv1alpha1.WorkloadAvailable, metav1.ConditionFalse, "Fenced", "the workload is fenced")
	case failed > 0 && int(out.ReadyReplicas) < max(least, 1):
		set(rikv1alpha1.WorkloadAvailable, metav1.ConditionFalse, reasonFailed, failedForGood(failed, s))
	case int(out.ReadyReplicas) >= least:
		set(rikv1alpha1.WorkloadAvailable, metav1.ConditionTrue, "EnoughReady", "enough instances are ready")
	default:
		set(rikv1alpha1.WorkloadAvailable, metav1.ConditionFalse, "TooFewReady", "too few instances are ready")
	}
}

// reasonFailed means that instances failed and are not restarted.
const reasonFailed = "InstancesFailed"

// missing returns the number of requested instances that failed permanently. Completed
// instances count before failed ones.
func (g *groups) missing() int {
	return max(min(replicas(g.Spec)-g.filled+g.failed, g.failed), 0)
}

func failedForGood(failed int, s Situation) string {
	return fmt.Sprintf("%d of %d instances failed, and restartPolicy Never does not start them again", failed, replicas(s.Spec))
}

// held says why the next instance does not exist yet, as an addition to another message. It is
// empty if no instance is delayed.
func held(out *rikv1alpha1.WorkloadStatus, g *groups, want int32) string {
	b := g.backOff()
	if out.Replicas >= want || !b.until.After(g.Now) {
		return ""
	}
	what := "an instance"
	if b.failed > 1 {
		what = fmt.Sprintf("%d instances", b.failed)
	}
	return fmt.Sprintf("; %s failed, and the next one starts at %s", what, b.until.UTC().Format(time.RFC3339))
}

// progress sets the condition of a rollout. The time of the condition is that of the last
// progress: a count that moved toward the goal.
func progress(out, before *rikv1alpha1.WorkloadStatus, s Situation, set setter) time.Duration {
	const kind = rikv1alpha1.WorkloadProgressing
	g := sortMembers(s)
	want := int32(max(replicas(s.Spec)-g.filled, 0))
	done := out.UpdatedReplicas == want && out.Replicas == want && out.ReadyReplicas == want
	complete := fmt.Sprintf("the rollout of revision %s is complete", s.Revision)
	note := held(out, g, want)
	switch {
	case s.Fenced != "":
		set(kind, metav1.ConditionUnknown, "Fenced", "no instance is started while the workload is fenced")
		return 0
	case done && g.missing() > 0:
		set(kind, metav1.ConditionFalse, reasonFailed, failedForGood(g.missing(), s))
		return 0
	case done:
		set(kind, metav1.ConditionTrue, "Complete", complete)
		return 0
	case s.Spec.Paused:
		set(kind, metav1.ConditionUnknown, "Paused", "the rollout is paused")
		return 0
	}
	last := meta.FindStatusCondition(before.Conditions, kind)
	// A time in the future comes from a clock that was ahead: the deadline counts from now on.
	moved := last == nil || last.Status == metav1.ConditionUnknown || last.LastTransitionTime.After(s.Now) ||
		before.CurrentRevision != out.CurrentRevision || before.ObservedGeneration != out.ObservedGeneration ||
		out.UpdatedReplicas > before.UpdatedReplicas || out.ReadyReplicas > before.ReadyReplicas ||
		out.Replicas-out.UpdatedReplicas < before.Replicas-before.UpdatedReplicas
	if moved {
		set(kind, metav1.ConditionTrue, "Progressing", "the rollout of revision "+s.Revision+" is in progress"+note)
		meta.FindStatusCondition(out.Conditions, kind).LastTransitionTime = metav1.NewTime(s.Now)
		return deadline(s.Spec)
	}
	if last.Reason == "Complete" {
		// An instance became unready by itself. That is not a rollout.
		set(kind, metav1.ConditionTrue, "Complete", complete+note)
		return 0
	}
	if last.Reason == "Progressing" {
		set(kind, metav1.ConditionTrue, "Progressing", "the rollout of revision "+s.Revision+" is in progress"+note)
	}
	left := last.LastTransitionTime.Add(deadline(s.Spec)).Sub(s.Now)
	if last.Status == metav1.ConditionTrue && left <= 0 {
		set(kind, metav1.ConditionFalse, "ProgressDeadlineExceeded",
			fmt.Sprintf("the rollout of revision %s made no progress for %s", s.Revision, deadline(s.Spec)))
	}
	return max(left, 0)
}

func deadline(s *rikv1alpha1.WorkloadSpec) time.Duration {
	if s.Strategy.ProgressDeadlineSeconds == nil {
		return 600 * time.Second
	}
	return time.Duration(*s.Strategy.ProgressDeadlineSeconds) * time.Second
}
