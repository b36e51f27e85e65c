package instance

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/registry/store"
)

// strategy is a store.Strategy with graceful deletion that never writes without a resource
// version. Two writers of one instance must detect each other.
type strategy struct {
	store.Strategy[*rik.Instance]
	// grace returns the termination grace period in the instance's revision.
	grace func(ctx context.Context, i *rik.Instance) int64
}

var _ rest.RESTGracefulDeleteStrategy = strategy{}

// AllowUnconditionalUpdate returns false.
func (strategy) AllowUnconditionalUpdate() bool { return false }

// CheckGracefulDelete keeps the instance with a deletion timestamp. Its node must first remove
// it, and then the finalizer rik.dev/node is removed.
//
// A grace period of 0 (kubectl delete --force --grace-period=0) is stored as requested. The
// controller then does not wait for the node: it removes the finalizer itself and writes a
// tombstone for the node's return.
func (s strategy) CheckGracefulDelete(ctx context.Context, obj runtime.Object, options *metav1.DeleteOptions) bool {
	i, ok := obj.(*rik.Instance)
	if !ok || options == nil {
		return false
	}
	if options.GracePeriodSeconds == nil {
		seconds := int64(v1alpha1.DefaultTerminationGraceSeconds)
		if s.grace != nil {
			seconds = s.grace(ctx, i)
		}
		options.GracePeriodSeconds = &seconds
	}
	// In the same write as the timestamp, which saves one write per deletion.
	i.Status.Phase = rik.InstanceDestroying
	i.Status.Ready = false
	setConditions(&i.Status, i.Status.Conditions)
	return true
}

// setConditions computes the conditions of a status from its fields and from the stored
// conditions, so that writers need not keep them consistent. A pending instance has none.
func setConditions(s *rik.InstanceStatus, stored []rik.InstanceCondition) {
	ready := metav1.ConditionFalse
	switch {
	case s.Phase == rik.InstancePending:
		s.Conditions = nil
		return
	case s.Phase == rik.InstanceUnknown:
		ready = metav1.ConditionUnknown
	case s.Ready:
		ready = metav1.ConditionTrue
	}
	if len(stored) == 1 && stored[0].Type == rikv1alpha1.ConditionReady && stored[0].Status == ready {
		s.Conditions = stored
		return
	}
	s.Conditions = []rik.InstanceCondition{{Type: rikv1alpha1.ConditionReady, Status: ready, LastTransitionTime: metav1.Now()}}
}

func prepareCreate(_ context.Context, i *rik.Instance) {
	i.Status = rik.InstanceStatus{Phase: rik.InstancePending}
	i.Generation = 1
	if !slices.Contains(i.Finalizers, rikv1alpha1.FinalizerNode) {
		i.Finalizers = append(i.Finalizers, rikv1alpha1.FinalizerNode)
	}
}

// prepareUpdate is for changes by users, who can only change metadata.
func prepareUpdate(ctx context.Context, i, old *rik.Instance) {
	i.Status = old.Status
	prepareWhole(ctx, i, old)
}

// prepareWhole is for the controller, which writes spec and status at once.
func prepareWhole(_ context.Context, i, old *rik.Instance) {
	setConditions(&i.Status, old.Status.Conditions)
	i.Generation = old.Generation
	if i.Spec != old.Spec {
		i.Generation++
	}
	// The registry removes an object without finalizers only if its grace period is over or 0.
	// Here the removal of the last finalizer shows that there is nothing to wait for. The old
	// object is the registry's own copy.
	if len(i.Finalizers) == 0 && old.DeletionTimestamp != nil {
		var zero int64
		old.DeletionGracePeriodSeconds, i.DeletionGracePeriodSeconds = &zero, &zero
	}
}

// prepareStatus keeps all but the status of the old object. The old object is the registry's own
// copy, which ends with the request, so the two may share what they do not change.
func prepareStatus(_ context.Context, i, old *rik.Instance) {
	status, managed, version := i.Status, i.ManagedFields, i.ResourceVersion
	setConditions(&status, old.Status.Conditions)
	*i = *old
	i.Status, i.ManagedFields, i.ResourceVersion = status, managed, version
}

// kept are the labels by which the controller finds its instances.
var kept = []string{rikv1alpha1.LabelWorkload, rikv1alpha1.LabelRevision}

func validateUpdate(ctx context.Context, i, old *rik.Instance) field.ErrorList {
	errs := validation.InstanceUpdate(i, old)
	at := field.NewPath("metadata")
	for _, l := range kept {
		if i.Labels[l] != old.Labels[l] {
			errs = append(errs, field.Forbidden(at.Child("labels").Key(l), "is set by the server and cannot be changed"))
		}
	}
	errs = append(errs, validateOrphan(ctx, i, old.Annotations[rikv1alpha1.AnnotationOrphaned])...)
	had, has := slices.Contains(old.Finalizers, rikv1alpha1.FinalizerNode), slices.Contains(i.Finalizers, rikv1alpha1.FinalizerNode)
	// Its removal before the deletion is refused, because then the node would never be informed
	// of the end.
	if had && !has && (old.DeletionTimestamp == nil || !store.Trusted(ctx)) {
		errs = append(errs, field.Forbidden(at.Child("finalizers"),
			`"`+rikv1alpha1.FinalizerNode+`" is removed when the node confirms that the instance has ended; to delete without the confirmation, use --force --grace-period=0`))
	}
	return errs
}

// validateOrphan prevents users from marking an instance as an orphan, because its workload
// would replace it each time.
func validateOrphan(ctx context.Context, i *rik.Instance, before string) field.ErrorList {
	if i.Annotations[rikv1alpha1.AnnotationOrphaned] == before || store.Trusted(ctx) {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata", "annotations").Key(rikv1alpha1.AnnotationOrphaned),
		"is set by the server; use kubectl delete workload --cascade=orphan")}
}

// controls reports whether the controller makes the request.
func controls(ctx context.Context) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && u.GetName() == rikv1alpha1.UserController
}

func newStrategies(grace func(context.Context, *rik.Instance) int64) (main, status, whole strategy) {
	create := func(ctx context.Context, i *rik.Instance) field.ErrorList {
		return append(validation.Instance(i), validateOrphan(ctx, i, "")...)
	}
	main = strategy{grace: grace, Strategy: store.NewStrategy(store.Rules[*rik.Instance]{
		Namespaced: true, Create: prepareCreate, Update: prepareUpdate, ValidateCreate: create, ValidateUpdate: validateUpdate,
		Reset: []string{"status"},
	})}
	status = strategy{Strategy: store.NewStrategy(store.Rules[*rik.Instance]{
		Namespaced: true, Update: prepareStatus,
		ValidateUpdate: func(_ context.Context, i, old *rik.Instance) field.ErrorList {
			return validation.InstanceStatusUpdate(i, old)
		},
		Reset: []string{"spec", "metadata"},
	})}
	whole = strategy{grace: grace, Strategy: store.NewStrategy(store.Rules[*rik.Instance]{
		Namespaced: true, Create: prepareCreate, Update: prepareWhole, ValidateCreate: create, ValidateUpdate: validateUpdate,
	})}
	return main, status, whole
}
