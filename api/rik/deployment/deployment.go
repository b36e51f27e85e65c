// Package deployment says what a Deployment of apps/v1 means in a rik cluster: an
// Automatic Workload of the same name. The API server asks it whether a Deployment
// can be run as it is written, and the controller runs what it answers.
//
// Validate refuses what would not be honored; its rules, one for each field that a
// Deployment can have, are in rules.go. Workload translates what Judge lets
// through. Both are plain functions of their argument, which must have Kubernetes'
// defaults, as every Deployment has that was read from an API server.
package deployment

import (
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"rik.dev/rik/api/inherit"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// Kind of the objects that are translated.
const Kind = "Deployment"

// disruption is what a Workload has that says nothing of it. A Deployment cannot.
const disruption = 1

// passedOn are the annotations of a Deployment that its Workload has too.
var passedOn = []string{workloadv1alpha1.FenceAfterAnnotation}

// own are all annotations of a Workload that its Deployment sets or takes off.
var own = append([]string{rikv1alpha1.AnnotationDeployment}, passedOn...)

// Workload translates. Every field that has a default is filled in, so that what
// is stored can be compared with it. The Workload has the labels of the template, as a
// ReplicaSet of Kubernetes does, but for the marks of tools.
func Workload(d *appsv1.Deployment) *rikv1alpha1.Workload {
	return &rikv1alpha1.Workload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       d.Namespace,
			Name:            d.Name,
			Labels:          copied(inherit.Copy(d.Spec.Template.Labels)),
			Annotations:     annotations(d),
			OwnerReferences: []metav1.OwnerReference{owner(d)},
		},
		Spec: rikv1alpha1.WorkloadSpec{
			Deploy:               rikv1alpha1.DeployAutomatic,
			Replicas:             number(d.Spec.Replicas, 1),
			Strategy:             strategy(d),
			Disruption:           rikv1alpha1.Disruption{MaxUnavailable: pointer(intstr.FromInt32(disruption))},
			RevisionHistoryLimit: number(d.Spec.RevisionHistoryLimit, 10),
			Paused:               d.Spec.Paused,
			InstanceTemplate:     template(d),
		},
	}
}

// owner is the reference by which a Workload is its Deployment's.
func owner(d *appsv1.Deployment) metav1.OwnerReference {
	return *metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind(Kind))
}

// IsOrphan reports whether a Workload was made by a Deployment of the name of d that has let go
// of it, as kubectl delete --cascade=orphan does. Like a ReplicaSet in Kubernetes, it is adopted
// only if the labels of its instances match the selector.
func IsOrphan(w *rikv1alpha1.Workload, d *appsv1.Deployment) bool {
	if metav1.GetControllerOfNoCopy(w) != nil || w.DeletionTimestamp != nil || w.Annotations[rikv1alpha1.AnnotationDeployment] != d.Name {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	return err == nil && !selector.Empty() && selector.Matches(labels.Set(w.Spec.Labels))
}

// Adopt gives an orphan its new owner. All else is for [Changed] to bring about.
func Adopt(w *rikv1alpha1.Workload, d *appsv1.Deployment) *rikv1alpha1.Workload {
	out := w.DeepCopy()
	out.OwnerReferences = append(slices.DeleteFunc(out.OwnerReferences, func(ref metav1.OwnerReference) bool {
		return ref.Kind == Kind && ref.Name == d.Name && ref.APIVersion == appsv1.SchemeGroupVersion.String()
	}), owner(d))
	return out
}

// Changed brings a stored Workload to what its Deployment asks for, and says
// whether there was anything to do. What others added to its metadata stays.
func Changed(stored, wanted *rikv1alpha1.Workload, same func(a, b any) bool) (*rikv1alpha1.Workload, bool) {
	next := stored.DeepCopy()
	next.Spec = *wanted.Spec.DeepCopy()
	for key := range wanted.Spec.Labels {
		if _, inherited := wanted.Labels[key]; !inherited {
			delete(next.Labels, key)
		}
	}
	for key, value := range wanted.Labels {
		metav1.SetMetaDataLabel(&next.ObjectMeta, key, value)
	}
	for _, key := range own {
		if value, set := wanted.Annotations[key]; set {
			metav1.SetMetaDataAnnotation(&next.ObjectMeta, key, value)
		} else {
			delete(next.Annotations, key)
		}
	}
	return next, !same(stored.Spec, next.Spec) || !same(stored.Labels, next.Labels) || !same(stored.Annotations, next.Annotations)
}

func annotations(d *appsv1.Deployment) map[string]string {
	out := map[string]string{rikv1alpha1.AnnotationDeployment: d.Name}
	for _, key := range passedOn {
		if value, set := d.Annotations[key]; set {
			out[key] = value
		}
	}
	return out
}

func strategy(d *appsv1.Deployment) rikv1alpha1.UpdateStrategy {
	out := rikv1alpha1.UpdateStrategy{
		Type:                    rikv1alpha1.RollingUpdate,
		ProgressDeadlineSeconds: number(d.Spec.ProgressDeadlineSeconds, 600),
	}
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		out.Type = rikv1alpha1.Recreate
		return out
	}
	quarter := intstr.FromString("25%")
	r := d.Spec.Strategy.RollingUpdate
	if r == nil {
		r = &appsv1.RollingUpdateDeployment{}
	}
	out.MaxSurge = pointer(*intstr.ValueOrDefault(r.MaxSurge, quarter))
	out.MaxUnavailable = pointer(*intstr.ValueOrDefault(r.MaxUnavailable, quarter))
	return out
}

func number(value *int32, otherwise int32) *int32 {
	if value != nil {
		otherwise = *value
	}
	return &otherwise
}

func pointer[T any](value T) *T { return &value }

// copied gives none for an empty map: the API knows no difference.
func copied(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(m)
}

// words are copied, none for an empty list.
func words(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return slices.Clone(list)
}
