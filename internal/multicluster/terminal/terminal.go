// Package terminal determines whether an object has finished: its work is done, or has failed
// permanently, and must not run again. If a cluster has removed a finished object, the syncer
// does not create it again. The splitter does not move a finished object. It is deleted upstream
// when its time to live ends.
//
// All functions are pure. They read an object's kind, spec and status.
package terminal

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Outcome is how an object has finished.
type Outcome struct {
	// Reason is the condition or phase that shows it.
	Reason string
	// At is when it finished. It is zero if the time is not known.
	At time.Time
}

// TTLField is the field with the time to live of a finished Job, in seconds. The controller of
// Kubernetes would delete the Job in the member cluster. The syncer could not distinguish that
// from a Job that has not run. See [Expires].
var TTLField = []string{"spec", "ttlSecondsAfterFinished"}

// Job is the kind that has a time to live.
var Job = schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}

// finishers read the status of the kinds that can finish.
var finishers = map[schema.GroupKind]func(status map[string]any) (Outcome, bool){
	Job:           byCondition(string(batchv1.JobComplete), string(batchv1.JobFailed)),
	{Kind: "Pod"}: byPhase(string(corev1.PodSucceeded), string(corev1.PodFailed)),
	{Group: rikv1alpha1.SchemeGroupVersion.Group, Kind: "Instance"}: byPhase(
		string(rikv1alpha1.InstanceCompleted), string(rikv1alpha1.InstanceFailed), string(rikv1alpha1.InstanceTerminated)),
}

// Of reports whether an object has finished, from its own status.
func Of(object *unstructured.Unstructured) (Outcome, bool) {
	status, _, _ := unstructured.NestedMap(object.Object, "status")
	return With(object.GroupVersionKind().GroupKind(), status)
}

// With is like Of for a status that is stored elsewhere.
func With(kind schema.GroupKind, status map[string]any) (Outcome, bool) {
	read, can := finishers[kind]
	if !can {
		return Outcome{}, false
	}
	return read(status)
}

func byCondition(names ...string) func(map[string]any) (Outcome, bool) {
	return func(status map[string]any) (Outcome, bool) {
		conditions, _, _ := unstructured.NestedSlice(status, "conditions")
		for _, c := range conditions {
			condition, _ := c.(map[string]any)
			for _, name := range names {
				if condition["type"] != name || condition["status"] != "True" {
					continue
				}
				text, _ := condition["lastTransitionTime"].(string)
				at, _ := time.Parse(time.RFC3339, text)
				return Outcome{Reason: name, At: at}, true
			}
		}
		return Outcome{}, false
	}
}

func byPhase(names ...string) func(map[string]any) (Outcome, bool) {
	return func(status map[string]any) (Outcome, bool) {
		phase, _ := status["phase"].(string)
		for _, name := range names {
			if phase == name {
				return Outcome{Reason: name}, true
			}
		}
		return Outcome{}, false
	}
}

// Expires returns when a finished object must be deleted. It returns false if it need not be, or
// if that is not known yet. If the finish time is later than now, the cluster's clock was ahead,
// and now counts as the finish time.
func Expires(object *unstructured.Unstructured, now time.Time) (time.Time, bool) {
	if object.GroupVersionKind().GroupKind() != Job {
		return time.Time{}, false
	}
	seconds, found, err := unstructured.NestedInt64(object.Object, TTLField...)
	if err != nil || !found || seconds < 0 {
		return time.Time{}, false
	}
	outcome, done := Of(object)
	if !done || outcome.At.IsZero() {
		return time.Time{}, false
	}
	if outcome.At.After(now) {
		outcome.At = now
	}
	return outcome.At.Add(time.Duration(min(seconds, maxTTLSeconds)) * time.Second), true
}

// maxTTLSeconds is a hundred years. The sum of it and any time is still a valid time.
const maxTTLSeconds = 100 * 365 * 24 * 60 * 60
