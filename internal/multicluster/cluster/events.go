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

// The reasons of events that are no reasons of conditions.
const (
	reasonSyncerStarted   = "SyncerStarted"
	reasonSyncerInstalled = "SyncerInstalled"
)

// record writes events about Clusters down until the returned function ends that.
func (c *Controller) record(ctx context.Context) (end func()) {
	c.recorder, end = newRecorder(event.NewSink(ctx, c.eventsClient))
	return end
}

func newRecorder(to record.EventSink) (recorder record.EventRecorder, end func()) {
	return event.NewRecorder(to, scheme, fieldManager)
}

// referenceTo is what an event about a Cluster is about.
func referenceTo(cluster *workloadv1alpha1.Cluster) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: workloadv1alpha1.SchemeGroupVersion.String(), Kind: "Cluster",
		Name: cluster.Name, UID: cluster.UID, ResourceVersion: cluster.ResourceVersion,
	}
}

// announce says in the log and in an event that a Cluster became ready, or why it no
// longer is.
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

// isNews says whether a condition is worth telling. Of a kubeconfig that is still
// refused, for something else, the user has just given a new one.
func isNews(before, after *metav1.Condition) bool {
	return before == nil || before.Status != after.Status || before.Reason != after.Reason ||
		after.Reason == workloadv1alpha1.ReasonInvalidKubeConfig && before.Message != after.Message
}

// eventType is that of the event which tells of a condition; empty if there is nothing
// to tell yet.
func eventType(ready *metav1.Condition) string {
	switch {
	case ready.Status == metav1.ConditionUnknown:
		return ""
	case ready.Status == metav1.ConditionTrue, ready.Reason == workloadv1alpha1.ReasonNoHeartbeat:
		return corev1.EventTypeNormal // or only waiting
	default:
		return corev1.EventTypeWarning
	}
}
