package workload

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	autoscalingvalidation "k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
)

// Scale serves the number of a workload's instances as autoscaling/v1, for clients that scale
// objects of any type.
type Scale struct{ store *genericregistry.Store }

var (
	_ rest.Patcher                  = &Scale{}
	_ rest.GroupVersionKindProvider = &Scale{}
)

// GroupVersionKind returns the type of the subresource.
func (s *Scale) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

// New returns an empty scale.
func (s *Scale) New() runtime.Object { return &autoscaling.Scale{} }

// Destroy does nothing, because the storage belongs to workloads.
func (s *Scale) Destroy() {}

// Get reads the scale of a workload.
func (s *Scale) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := s.store.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	return scaleOf(obj.(*rik.Workload)), nil
}

// Update writes spec.replicas of a workload.
func (s *Scale) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	validate := func(ctx context.Context, obj, old runtime.Object) error {
		if update == nil {
			return nil
		}
		return update(ctx, scaleOf(obj.(*rik.Workload)), scaleOf(old.(*rik.Workload)))
	}
	obj, _, err := s.store.Update(ctx, name, &scaled{name: name, info: info}, nil, validate, false, options)
	if err != nil {
		return nil, false, err
	}
	return scaleOf(obj.(*rik.Workload)), false, nil
}

// ConvertToTable returns the same table as for Kubernetes' own scales.
func (s *Scale) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return rest.NewDefaultTableConvertor(rik.Resource("workloads")).ConvertToTable(ctx, object, options)
}

func scaleOf(w *rik.Workload) *autoscaling.Scale {
	out := &autoscaling.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.Namespace, Name: w.Name, UID: w.UID,
			ResourceVersion: w.ResourceVersion, CreationTimestamp: w.CreationTimestamp,
		},
		Status: autoscaling.ScaleStatus{Replicas: w.Status.Replicas, Selector: selector(w)},
	}
	if w.Spec.Replicas != nil {
		out.Spec.Replicas = *w.Spec.Replicas
	}
	return out
}

// replicasPath maps a scale's field owners to the field of a workload.
var replicasPath = managedfields.ResourcePathMappings{
	rikv1alpha1.SchemeGroupVersion.String(): fieldpath.MakePathOrDie("spec", "replicas"),
}

// scaled converts a change of a scale to a change of its workload.
type scaled struct {
	name string
	info rest.UpdatedObjectInfo
}

// Preconditions returns those of the request.
func (s *scaled) Preconditions() *metav1.Preconditions { return s.info.Preconditions() }

// UpdatedObject applies the request to a workload.
func (s *scaled) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	w, ok := old.DeepCopyObject().(*rik.Workload)
	if !ok || w.ResourceVersion == "" {
		return nil, apierrors.NewNotFound(rik.Resource("workloads"), s.name)
	}
	owners := managedfields.NewScaleHandler(w.ManagedFields, rikv1alpha1.SchemeGroupVersion, replicasPath)
	before := scaleOf(w)
	managed, err := owners.ToSubresource()
	if err != nil {
		return nil, err
	}
	before.ManagedFields = managed
	changed, err := s.info.UpdatedObject(ctx, before)
	if err != nil {
		return nil, err
	}
	scale, ok := changed.(*autoscaling.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected a Scale, got %T", changed))
	}
	if errs := autoscalingvalidation.ValidateScale(scale); len(errs) > 0 {
		return nil, apierrors.NewInvalid(autoscaling.Kind("Scale"), w.Name, errs)
	}
	if scale.UID != "" && scale.UID != w.UID {
		return nil, apierrors.NewConflict(rik.Resource("workloads"), w.Name, fmt.Errorf("its UID is %s, not %s", w.UID, scale.UID))
	}
	replicas := scale.Spec.Replicas
	w.Spec.Replicas, w.ResourceVersion = &replicas, scale.ResourceVersion
	if w.ManagedFields, err = owners.ToParent(scale.ManagedFields); err != nil {
		return nil, err
	}
	return w, nil
}
