package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/reconcile/event"
)

// The reasons of events that are not also reasons of conditions.
const (
	reasonSyncerStarted   = "SyncerStarted"
	reasonSyncerInstalled = "SyncerInstalled"
)

// record starts the event recorder. The returned function stops it.
func (c *Controller) record(ctx context.Context) (end func()) {
	c.recorder, end = newRecorder(event.NewSink(ctx, c.eventsClient))
	return end
}

func newRecorder(to record.EventSink) (recorder record.EventRecorder, end func()) {
	return event.NewRecorder(to, scheme, fieldManager)
}

// referenceTo returns the reference to a Cluster for its events.
func referenceTo(cluster *workloadv1alpha1.Cluster) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: workloadv1alpha1.SchemeGroupVersion.String(), Kind: "Cluster",
		Name: cluster.Name, UID: cluster.UID, ResourceVersion: cluster.ResourceVersion,
	}
}

// announce logs and records as an event that a Cluster became ready, or why it is no longer
// ready.
func (c *Controller) announce(cluster *workloadv1alpha1.Cluster, status workloadv1alpha1.ClusterStatus) {
	before := meta.FindStatusCondition(cluster.Status.Conditions, workloadv1alpha1.ConditionReady)
	after := meta.FindStatusCondition(status.Conditions, workloadv1alpha1.ConditionReady)
	if !isNews(before, after) {
		return
	}
	c.config.Logger.Info("a cluster changed", "cluster", cluster.Name, "ready", after.Status, "reason", after.Reason, "message", after.Message)
	if kind := eventType(after); kind != "" {
		c.recorder.Event(referenceTo(cluster), kind, after.Reason, after.Message)
	}
}

// isNews reports whether a change of a condition is worth an event. If a kubeconfig is still
// invalid, but for another reason, the user has just replaced it.
func isNews(before, after *metav1.Condition) bool {
	return before == nil || before.Status != after.Status || before.Reason != after.Reason ||
		after.Reason == workloadv1alpha1.ReasonInvalidKubeConfig && before.Message != after.Message
}

// eventType returns the type of the event for a condition. It is empty if there is nothing to
// report yet.
func eventType(ready *metav1.Condition) string {
	switch {
	case ready.Status == metav1.ConditionUnknown:
		return ""
	case ready.Status == metav1.ConditionTrue, ready.Reason == workloadv1alpha1.ReasonNoHeartbeat:
		return corev1.EventTypeNormal // or it only waits
	default:
		return corev1.EventTypeWarning
	}
}
