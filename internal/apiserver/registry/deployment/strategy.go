package deployment

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/capabilities"
	kubernetes "k8s.io/kubernetes/pkg/registry/apps/deployment"

	translation "rik.dev/rik/api/rik/deployment"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
)

// init allows privileged containers in Kubernetes' validation, which refuses them unless the
// process enables them once. The writer's privilege is checked here instead; see permit.
func init() { capabilities.Setup(true, 0) }

// theirs is the interface of Kubernetes' strategy.
type theirs interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.GarbageCollectionDeleteStrategy
	rest.ResetFieldsStrategy
}

// strategy is Kubernetes' own strategy, which also refuses fields that rik does not honor.
type strategy struct{ theirs }

var ours = strategy{kubernetes.Strategy}

// Validate validates a new deployment.
func (s strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	if errs := s.theirs.Validate(ctx, obj); len(errs) > 0 {
		return errs
	}
	return validate(obj.(*apps.Deployment))
}

// ValidateUpdate validates a changed deployment. It does not validate an unchanged spec again:
// an earlier version may have accepted it, and its metadata must remain changeable.
func (s strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	if errs := s.theirs.ValidateUpdate(ctx, obj, old); len(errs) > 0 {
		return errs
	}
	now, before := obj.(*apps.Deployment), old.(*apps.Deployment)
	if apiequality.Semantic.DeepEqual(now.Spec, before.Spec) {
		return nil
	}
	return validate(now)
}

// validate checks whether all fields of the deployment can be honored, and then whether its
// translation is a valid workload.
func validate(d *apps.Deployment) field.ErrorList {
	published, err := publish(d)
	if err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	if errs := translation.Validate(published); len(errs) > 0 {
		return errs
	}
	workload, err := translate(published)
	if err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	errs := validation.Workload(workload)
	for _, e := range errs {
		e.Field = translation.Path(e.Field)
	}
	return errs
}

func publish(d *apps.Deployment) (*appsv1.Deployment, error) {
	var out appsv1.Deployment
	if err := legacyscheme.Scheme.Convert(d, &out, nil); err != nil {
		return nil, fmt.Errorf("converting the deployment: %w", err)
	}
	return &out, nil
}

// translate returns the workload in its stored form.
func translate(d *appsv1.Deployment) (*rik.Workload, error) {
	published := translation.Workload(d)
	legacyscheme.Scheme.Default(published)
	var out rik.Workload
	if err := legacyscheme.Scheme.Convert(published, &out, nil); err != nil {
		return nil, fmt.Errorf("converting the workload: %w", err)
	}
	// A new deployment has no UID to refer to yet.
	out.OwnerReferences = nil
	return &out, nil
}
