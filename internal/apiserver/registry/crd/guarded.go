package crd

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/dynamic"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// Loss says what a change of a CRD would take from an object that is stored, and of
// which one; empty means nothing. The CRD that comes next is nil if it is deleted. The
// client reads the objects. No object is written meanwhile.
type Loss func(ctx context.Context, client dynamic.Interface, before, next *apiextensionsv1.CustomResourceDefinition) (string, error)

// keeper refuses changes of CRDs that negotiation has made if they would take something
// from a stored object. Other CRDs are whoever's made them.
type keeper struct {
	gate   *Gate
	loss   Loss
	client dynamic.Interface
}

// isKept says whether a CRD is guarded.
func isKept(crd *apiextensions.CustomResourceDefinition) bool {
	return crd.Annotations[apiresourcev1alpha1.NegotiatedAnnotation] == "true" && crd.DeletionTimestamp.IsZero()
}

// check holds the writes of the type back, and refuses the change if it takes something
// away. It may be called again for the same change.
func (k keeper) check(ctx context.Context, c *change, before, next *apiextensions.CustomResourceDefinition, dryRun []string) error {
	resource := schema.GroupResource{Group: before.Spec.Group, Resource: before.Spec.Names.Plural}
	dry := dryrun.IsDryRun(dryRun)
	if !dry {
		if err := c.still(ctx, resource); err != nil {
			return err
		}
		c.letIn() // the objects are about to be read
	}
	was, err := external(before)
	if err != nil {
		return err
	}
	var becomes *apiextensionsv1.CustomResourceDefinition
	if next != nil {
		if becomes, err = external(next); err != nil {
			return err
		}
	}
	lost, err := k.loss(ctx, k.client, was, becomes)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("looking what the change takes from stored objects: %w", err))
	}
	if lost != "" {
		return apierrors.NewConflict(apiextensions.Resource("customresourcedefinitions"), before.Name,
			fmt.Errorf("the type was negotiated, and the change would take something from a stored object: %s", lost))
	}
	c.from = before.DeepCopy()
	if dry || !c.replaces {
		return nil
	}
	return c.shutOut(ctx)
}

func external(crd *apiextensions.CustomResourceDefinition) (*apiextensionsv1.CustomResourceDefinition, error) {
	out := &apiextensionsv1.CustomResourceDefinition{}
	if err := apiextensionsapiserver.Scheme.Convert(crd.DeepCopy(), out, nil); err != nil {
		return nil, fmt.Errorf("converting the CRD %s: %w", crd.Name, err)
	}
	return out, nil
}

// guarded is the storage of CRDs with a keeper.
type guarded struct {
	*customresourcedefinition.REST
	keeper keeper
}

// stored reads a CRD as it is now, whatever became of the request.
func (r *guarded) stored(ctx context.Context, name string) func() (*apiextensions.CustomResourceDefinition, error) {
	ctx = context.WithoutCancel(ctx)
	return func() (*apiextensions.CustomResourceDefinition, error) {
		found, err := r.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return found.(*apiextensions.CustomResourceDefinition), nil
	}
}

// Update implements rest.Updater.
func (r *guarded) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc,
	updateValidation rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (updated runtime.Object, created bool, err error) {
	c := &change{gate: r.keeper.gate, replaces: true}
	defer func() { c.end(err, r.stored(ctx, name)) }()
	info = rest.WrapUpdatedObjectInfo(info, func(ctx context.Context, next, before runtime.Object) (runtime.Object, error) {
		was, becomes := before.(*apiextensions.CustomResourceDefinition), next.(*apiextensions.CustomResourceDefinition)
		if !isKept(was) || equality.Semantic.DeepEqual(was.Spec, becomes.Spec) {
			return next, nil
		}
		// The status that comes with it does not count.
		validated := becomes.DeepCopy()
		validated.Status = was.Status
		return next, r.keeper.check(ctx, c, was, validated, options.DryRun)
	})
	return r.REST.Update(ctx, name, info, createValidation, updateValidation, forceAllowCreate, options)
}

// Delete implements rest.GracefulDeleter.
func (r *guarded) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (deleted runtime.Object, immediately bool, err error) {
	c := &change{gate: r.keeper.gate, replaces: true}
	defer func() { c.end(err, r.stored(ctx, name)) }()
	var dry []string
	if options != nil {
		dry = options.DryRun
	}
	return r.REST.Delete(ctx, name, func(ctx context.Context, obj runtime.Object) error {
		if err := validate(ctx, obj); err != nil {
			return err
		}
		if was := obj.(*apiextensions.CustomResourceDefinition); isKept(was) {
			return r.keeper.check(ctx, c, was, nil, dry)
		}
		return nil
	}, options)
}

// DeleteCollection implements rest.CollectionDeleter: one after the other, each as if it
// were deleted alone.
func (r *guarded) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, which *metainternalversion.ListOptions) (runtime.Object, error) {
	found, err := r.List(ctx, which)
	if err != nil {
		return nil, err
	}
	list := found.(*apiextensions.CustomResourceDefinitionList)
	var problems []error
	for i := range list.Items {
		if _, _, err := r.Delete(ctx, list.Items[i].Name, validate, options.DeepCopy()); err != nil && !apierrors.IsNotFound(err) {
			problems = append(problems, err)
		}
	}
	if len(problems) == 1 {
		return nil, problems[0]
	}
	return list, errors.Join(problems...)
}

// guardedStatus is the storage of the status of CRDs with a keeper.
type guardedStatus struct {
	*customresourcedefinition.StatusREST
	whole *guarded
}

// Update implements rest.Updater. Only that a version leaves storedVersions matters:
// then it may leave the CRD, and what is stored in it cannot be read any more.
func (r *guardedStatus) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc,
	updateValidation rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (updated runtime.Object, created bool, err error) {
	c := &change{gate: r.whole.keeper.gate}
	defer func() { c.end(err, r.whole.stored(ctx, name)) }()
	info = rest.WrapUpdatedObjectInfo(info, func(ctx context.Context, next, before runtime.Object) (runtime.Object, error) {
		was, becomes := before.(*apiextensions.CustomResourceDefinition), next.(*apiextensions.CustomResourceDefinition)
		if !isKept(was) || containsAll(becomes.Status.StoredVersions, was.Status.StoredVersions) {
			return next, nil
		}
		validated := was.DeepCopy()
		validated.Status.StoredVersions = becomes.Status.StoredVersions
		return next, r.whole.keeper.check(ctx, c, was, validated, options.DryRun)
	})
	return r.StatusREST.Update(ctx, name, info, createValidation, updateValidation, forceAllowCreate, options)
}

func containsAll(have, want []string) bool {
	known := map[string]bool{}
	for _, v := range have {
		known[v] = true
	}
	for _, v := range want {
		if !known[v] {
			return false
		}
	}
	return true
}
