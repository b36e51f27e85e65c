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

// Loss returns which fields a change of a CRD would remove from a stored object, and from which
// object. It is empty if there are none. next is nil if the CRD is deleted. The client reads
// the objects. No object is written in the meantime.
type Loss func(ctx context.Context, client dynamic.Interface, before, next *apiextensionsv1.CustomResourceDefinition) (string, error)

// guard refuses a change of a CRD from negotiation that would remove fields from a stored
// object. It ignores other CRDs.
type guard struct {
	gate   *Gate
	loss   Loss
	client dynamic.Interface
}

// isKept reports whether a CRD is protected.
func isKept(crd *apiextensions.CustomResourceDefinition) bool {
	return crd.Annotations[apiresourcev1alpha1.NegotiatedAnnotation] == "true" && crd.DeletionTimestamp.IsZero()
}

// check blocks writes of the type, and refuses the change if it would remove fields. It may be
// called again for the same change.
func (k guard) check(ctx context.Context, c *change, before, next *apiextensions.CustomResourceDefinition, dryRun []string) error {
	resource := schema.GroupResource{Group: before.Spec.Group, Resource: before.Spec.Names.Plural}
	dry := dryrun.IsDryRun(dryRun)
	if !dry {
		if err := c.still(ctx, resource); err != nil {
			return err
		}
		c.letIn() // the objects are read next
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
		return apierrors.NewInternalError(fmt.Errorf("checking the change against the stored objects: %w", err))
	}
	if lost != "" {
		return apierrors.NewConflict(apiextensions.Resource("customresourcedefinitions"), before.Name,
			fmt.Errorf("the type was negotiated, and a stored object would lose data by the change: %s", lost))
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
	keeper guard
}

// stored returns a function that reads the current CRD, even if the request has ended.
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
		// The status in the update does not count.
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

// DeleteCollection implements rest.CollectionDeleter. It deletes the CRDs one after the other,
// each like a single deletion.
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

// Update implements rest.Updater. It checks only the removal of a version from storedVersions.
// After that the version may be removed from the CRD, and objects stored in it could not be
// read any more.
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
