// Package deployment translates a Deployment of apps/v1 into an Automatic Workload of the same
// name. The API server validates Deployments with it, and the controller stores the Workload.
//
// Validate rejects fields that a rik cluster does not honor. Its rules are in rules.go, one for
// each field of a Deployment. Workload translates a valid Deployment. Both are pure. Their
// argument must have Kubernetes' defaults, like each Deployment that was read from an API server.
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

// Kind is the kind of the translated objects.
const Kind = "Deployment"

// disruption is the default of a Workload. A Deployment has no such field.
const disruption = 1

// passedOn lists the annotations that a Workload gets from its Deployment.
var passedOn = []string{workloadv1alpha1.FenceAfterAnnotation}

// own lists all annotations of a Workload that its Deployment sets or removes.
var own = append([]string{rikv1alpha1.AnnotationDeployment}, passedOn...)

// Workload translates a Deployment. It sets all fields that have a default, so that the result can
// be compared with the stored Workload. The Workload has the labels of the template, like a
// ReplicaSet of Kubernetes, but without the marks of tools.
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

// owner returns the reference from a Workload to its Deployment.
func owner(d *appsv1.Deployment) metav1.OwnerReference {
	return *metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind(Kind))
}

// IsOrphan reports whether a Workload was made by an earlier Deployment with the name of d and has
// no owner now, as after kubectl delete --cascade=orphan. Like a ReplicaSet in Kubernetes, it is
// an orphan of d only if the labels of its instances match the selector of d.
func IsOrphan(w *rikv1alpha1.Workload, d *appsv1.Deployment) bool {
	if metav1.GetControllerOfNoCopy(w) != nil || w.DeletionTimestamp != nil || w.Annotations[rikv1alpha1.AnnotationDeployment] != d.Name {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	return err == nil && !selector.Empty() && selector.Matches(labels.Set(w.Spec.Labels))
}

// Adopt returns an orphan with its new owner. [Changed] makes all other changes.
func Adopt(w *rikv1alpha1.Workload, d *appsv1.Deployment) *rikv1alpha1.Workload {
	out := w.DeepCopy()
	out.OwnerReferences = append(slices.DeleteFunc(out.OwnerReferences, func(ref metav1.OwnerReference) bool {
		return ref.Kind == Kind && ref.Name == d.Name && ref.APIVersion == appsv1.SchemeGroupVersion.String()
	}), owner(d))
	return out
}

// Changed returns a stored Workload with the content that its Deployment wants, and whether it
// differs from the stored one. Metadata that others added stays.
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

// copied returns a copy of a map, or nil for an empty one. The API does not distinguish these.
func copied(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(m)
}

// words returns a copy of a list, or nil for an empty one.
func words(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return slices.Clone(list)
}
