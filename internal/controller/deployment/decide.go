package deployment

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	translation "rik.dev/rik/api/rik/deployment"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Action is what brings the Workload of a Deployment to what is asked. At most one
// of Create and Update is set.
type Action struct {
	Create, Update *rikv1alpha1.Workload
	// Problem is why there can be none.
	Problem *Problem
}

// Problem is what keeps a Deployment from being run: a reason in one word, and what
// to do about it.
type Problem struct{ Reason, Message string }

// Reasons of a Problem.
const (
	ReasonNotHonoured = "NotHonoured"
	ReasonNameTaken   = "NameTaken"
	ReasonRefused     = "WorkloadRefused"
)

// Decide compares a Deployment with the Workload of its name, which may be nil. It
// is a pure function, and deciding again after the action was carried out decides
// nothing.
func Decide(d *appsv1.Deployment, w *rikv1alpha1.Workload) Action {
	if errs := translation.Judge(d); len(errs) > 0 {
		return Action{Problem: &Problem{ReasonNotHonoured, errs.ToAggregate().Error()}}
	}
	wanted := translation.Workload(d)
	switch {
	case w == nil:
		return Action{Create: wanted}
	case !metav1.IsControlledBy(w, d):
		return Action{Problem: taken(w)}
	case w.DeletionTimestamp != nil:
		return Action{} // another is made when it is gone
	}
	if next, changed := translation.Changed(w, wanted, equality.Semantic.DeepEqual); changed {
		return Action{Update: next}
	}
	return Action{}
}

// taken: what somebody else made is never adopted.
func taken(w *rikv1alpha1.Workload) *Problem {
	if owner := metav1.GetControllerOf(w); owner != nil && owner.Kind == translation.Kind {
		return &Problem{ReasonNameTaken, fmt.Sprintf("the Workload %q is still that of an earlier Deployment of this name; this one starts when it is gone", w.Name)}
	}
	return &Problem{ReasonNameTaken, fmt.Sprintf("there is a Workload %q that this Deployment did not make: delete it, or give the Deployment another name", w.Name)}
}
