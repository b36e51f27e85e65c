package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

func readiness(status metav1.ConditionStatus, reason, message string) *metav1.Condition {
	return &metav1.Condition{Type: workloadv1alpha1.ConditionReady, Status: status, Reason: reason, Message: message}
}

func TestEventsReportNews(t *testing.T) {
	t.Parallel()
	ready := readiness(metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady, "a")
	away := readiness(metav1.ConditionFalse, workloadv1alpha1.ReasonClusterUnreachable, "a")
	waiting := readiness(metav1.ConditionFalse, workloadv1alpha1.ReasonNoHeartbeat, "a")
	refused := readiness(metav1.ConditionFalse, workloadv1alpha1.ReasonInvalidKubeConfig, "a")
	for name, tc := range map[string]struct {
		before, after *metav1.Condition
		want          string // the type of the event
	}{
		"ready":                           {waiting, ready, corev1.EventTypeNormal},
		"ready at the first look":         {nil, ready, corev1.EventTypeNormal},
		"ready still":                     {ready, readiness(metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady, "b"), ""},
		"lost":                            {ready, away, corev1.EventTypeWarning},
		"lost in other words":             {away, readiness(metav1.ConditionFalse, workloadv1alpha1.ReasonClusterUnreachable, "b"), ""},
		"lost for another reason":         {away, refused, corev1.EventTypeWarning},
		"refused again":                   {refused, readiness(metav1.ConditionFalse, workloadv1alpha1.ReasonInvalidKubeConfig, "b"), corev1.EventTypeWarning},
		"refused still":                   {refused, refused, ""},
		"waiting for a syncer":            {nil, waiting, corev1.EventTypeNormal},
		"nothing is known yet":            {nil, readiness(metav1.ConditionUnknown, workloadv1alpha1.ReasonClusterStatusUnknown, "a"), ""},
		"nothing is known after a change": {ready, readiness(metav1.ConditionUnknown, workloadv1alpha1.ReasonClusterStatusUnknown, "a"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			if isNews(tc.before, tc.after) {
				got = eventType(tc.after)
			}
			if got != tc.want {
				t.Errorf("the event is of type %q, want %q", got, tc.want)
			}
		})
	}
}

// TestEventsAreBounded tests that a Cluster which becomes ready and not ready endlessly does not
// fill the datastore.
func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	written := make(chan string, 1000)
	recorder, end := newRecorder(countingSink(written))
	t.Cleanup(end)
	flapping, last := &workloadv1alpha1.Cluster{}, &workloadv1alpha1.Cluster{}
	flapping.Name, flapping.UID = "flapping", "1"
	last.Name, last.UID = "last", "2"
	const changes = 400
	for i := range changes {
		reason := []string{workloadv1alpha1.ReasonClusterReady, workloadv1alpha1.ReasonClusterUnreachable}[i%2]
		recorder.Event(referenceTo(flapping), corev1.EventTypeNormal, reason, "a message")
	}
	recorder.Event(referenceTo(last), corev1.EventTypeNormal, workloadv1alpha1.ReasonClusterReady, "a message")
	writes := 0
	for about := range written {
		if about == "last" {
			break
		}
		writes++
	}
	if writes == 0 || writes > 30 {
		t.Errorf("%d changes are written %d times, want about 25", changes, writes)
	}
}

// countingSink sends the names of the Clusters in events to a channel.
type countingSink chan string

func (s countingSink) Create(e *corev1.Event) (*corev1.Event, error) {
	s <- e.InvolvedObject.Name
	return e, nil
}
func (s countingSink) Update(e *corev1.Event) (*corev1.Event, error)          { return s.Create(e) }
func (s countingSink) Patch(e *corev1.Event, _ []byte) (*corev1.Event, error) { return s.Create(e) }
