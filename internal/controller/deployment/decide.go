package deployment

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	translation "rik.dev/rik/api/rik/deployment"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Action brings the Workload of a Deployment to its desired state. At most one of Create and
// Update is set.
type Action struct {
	Create, Update *rikv1alpha1.Workload
	// Problem says why there is no action.
	Problem *Problem
}

// Problem is what prevents a Deployment from running. Reason is one word. Message says what to
// do about it.
type Problem struct{ Reason, Message string }

// Reasons of a Problem.
const (
	ReasonNotHonored = "NotHonoured"
	ReasonNameTaken  = "NameTaken"
	ReasonRefused    = "WorkloadRefused"
)

// Decide compares a Deployment with the Workload of its name, which may be nil. It is a pure
// function. After the action was executed, the next decision is empty.
func Decide(d *appsv1.Deployment, w *rikv1alpha1.Workload) Action {
	if errs := translation.Validate(d); len(errs) > 0 {
		return Action{Problem: &Problem{ReasonNotHonored, errs.ToAggregate().Error()}}
	}
	wanted := translation.Workload(d)
	switch {
	case w == nil:
		return Action{Create: wanted}
	case translation.IsOrphan(w, d):
		next, _ := translation.Changed(translation.Adopt(w, d), wanted, equality.Semantic.DeepEqual)
		return Action{Update: next}
	case !metav1.IsControlledBy(w, d):
		return Action{Problem: taken(w, d)}
	case w.DeletionTimestamp != nil:
		return Action{} // the next one is created after its removal
	}
	if next, changed := translation.Changed(w, wanted, equality.Semantic.DeepEqual); changed {
		return Action{Update: next}
	}
	return Action{}
}

// taken returns the problem of a name that another object uses. A Workload that another object
// created is never adopted.
func taken(w *rikv1alpha1.Workload, d *appsv1.Deployment) *Problem {
	owner := metav1.GetControllerOf(w)
	switch {
	case owner != nil && owner.Kind == translation.Kind:
		return &Problem{ReasonNameTaken, fmt.Sprintf("the Workload %q still belongs to an earlier Deployment of this name; this Deployment starts when that Workload is deleted", w.Name)}
	case owner != nil:
		return &Problem{ReasonNameTaken, fmt.Sprintf("the Workload %q belongs to %s %q: give the Deployment another name", w.Name, owner.Kind, owner.Name)}
	case w.Annotations[rikv1alpha1.AnnotationDeployment] == d.Name && w.DeletionTimestamp == nil:
		return &Problem{ReasonNameTaken, fmt.Sprintf("an earlier Deployment left the Workload %q, and the labels of its instances do not match the selector of this Deployment: "+
			"delete the Workload, or change the selector", w.Name)}
	}
	return &Problem{ReasonNameTaken, fmt.Sprintf("the Workload %q exists, and this Deployment did not create it. Delete it, give the Deployment another name, "+
		"or set the annotation %s=%s on the Workload, and the Deployment takes it over", w.Name, rikv1alpha1.AnnotationDeployment, d.Name)}
}
