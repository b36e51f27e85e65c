package restv0

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/registry/store"
)

// auditAnnotation names, in the audit log, the object to which a path refers.
const auditAnnotation = "rik.dev/object"

// resource is the type for which requests are authorized and admitted.
type resource struct {
	schema.GroupVersionResource
	kind, singular string
}

func resourceOf(plural, singular, kind string) resource {
	return resource{rikv1alpha1.SchemeGroupVersion.WithResource(plural), kind, singular}
}

var (
	workloads = resourceOf("workloads", "workload", "Workload")
	instances = resourceOf("instances", "instance", "Instance")
	tenants   = resourceOf("tenants", "tenant", "Tenant")
)

// storage contains the methods of a store for one resource.
type storage interface {
	Create(context.Context, runtime.Object, rest.ValidateObjectFunc, *metav1.CreateOptions) (runtime.Object, error)
	Delete(context.Context, string, rest.ValidateObjectFunc, *metav1.DeleteOptions) (runtime.Object, bool, error)
	List(context.Context, *internalversion.ListOptions) (runtime.Object, error)
}

// in returns the context in which a store handles a request for one of its objects.
func (c *call) in(verb string, r resource, namespace, name string) context.Context {
	return about(c.Context(), verb, r, namespace, name)
}

func about(ctx context.Context, verb string, r resource, namespace, name string) context.Context {
	ctx = request.WithNamespace(ctx, namespace)
	return request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, Verb: verb, APIGroup: r.Group, APIVersion: r.Version,
		Resource: r.Resource, Namespace: namespace, Name: name,
	})
}

// may checks whether the user has a permission in a namespace, or in all namespaces if it is
// empty.
func (c *call) may(verb string, r resource, namespace, name string) (bool, error) {
	decision, _, err := c.Authorizer.Authorize(c.Context(), authorizer.AttributesRecord{
		User: c.user, Verb: verb, APIGroup: r.Group, APIVersion: r.Version,
		Resource: r.Resource, Namespace: namespace, Name: name, ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return true, nil
	}
	if err != nil {
		return false, apierrors.NewInternalError(fmt.Errorf("checking whether %s may %s %s: %w", c.user.GetName(), verb, r.Resource, err))
	}
	return false, nil
}

// must returns a refusal if the user lacks a permission. The refusal contains only values that
// the user sent.
func (c *call) must(verb string, r resource, namespace, name, what string) error {
	ok, err := c.may(verb, r, namespace, name)
	if err != nil || ok {
		return err
	}
	return apierrors.NewForbidden(r.GroupResource(), name, fmt.Errorf("user %q may not %s %s", c.user.GetName(), verb, what))
}

// scopes returns the namespaces that a list covers: the requested one; all of them ("") for a
// user who may list everywhere; otherwise each namespace in which the user may list.
func (c *call) scopes(r resource) ([]string, error) {
	if c.namespace != "" {
		return []string{c.namespace}, c.must("list", r, c.namespace, "", fmt.Sprintf("%s in namespace %q", r.Resource, c.namespace))
	}
	everywhere, err := c.may("list", r, "", "")
	if err != nil {
		return nil, err
	}
	if everywhere {
		return []string{""}, nil
	}
	all, err := c.Namespaces(c.Context())
	if err != nil {
		return nil, err
	}
	var out []string
	for _, namespace := range all {
		ok, err := c.may("list", r, namespace, "")
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, namespace)
		}
	}
	if len(out) == 0 {
		return nil, c.must("list", r, "", "", r.Resource+" in any namespace")
	}
	return out, nil
}

// list returns the objects that the user may list, sorted by namespace and name, up to the
// limit.
func list[L runtime.Object, T any](c *call, s storage, r resource, items func(L) []T) ([]T, error) {
	scopes, err := c.scopes(r)
	if err != nil {
		return nil, err
	}
	out := []T{}
	for _, namespace := range scopes {
		options := &internalversion.ListOptions{}
		if c.limit > 0 {
			if options.Limit = c.limit - int64(len(out)); options.Limit == 0 {
				break
			}
		}
		obj, err := s.List(c.in("list", r, namespace, ""), options)
		if err != nil {
			return nil, err
		}
		page, ok := obj.(L)
		if !ok {
			return nil, apierrors.NewInternalError(fmt.Errorf("programmer error: %T is not a list of %s", obj, r.Resource))
		}
		out = append(out, items(page)...)
	}
	return out, nil
}

// create admits and stores an object of the hub type, and returns the stored one.
func create[T store.Object](ctx context.Context, c *call, s storage, r resource, object T) (T, error) {
	var none T
	name, namespace := object.GetName(), object.GetNamespace()
	ctx = about(ctx, "create", r, namespace, name)
	options := &metav1.CreateOptions{}
	attributes := admission.NewAttributesRecord(object, nil, r.GroupVersion().WithKind(r.kind), namespace, name,
		r.GroupVersionResource, "", admission.Create, options, false, c.user)
	admit, objects := admission.WithAudit(c.Admission), admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
	if mutating, ok := admit.(admission.MutationInterface); ok && mutating.Handles(admission.Create) {
		if err := mutating.Admit(ctx, attributes, objects); err != nil {
			return none, err
		}
	}
	made, err := s.Create(ctx, object, rest.AdmissionToValidateObjectFunc(admit, attributes, objects), options)
	if err != nil {
		return none, err
	}
	out, ok := made.(T)
	if !ok {
		return none, apierrors.NewInternalError(fmt.Errorf("programmer error: %T is not a %s", made, r.singular))
	}
	return out, nil
}

// remove admits and performs the deletion of exactly this object, after checking the user's
// permission. id is the ID that the user sent.
func (c *call) remove(s storage, r resource, object store.Object, id string) error {
	name, namespace, uid := object.GetName(), object.GetNamespace(), object.GetUID()
	switch ok, err := c.may("delete", r, namespace, name); {
	case err != nil:
		return err
	case !ok:
		// Use the ID that the user sent, because the user may not be allowed to see the object's
		// name.
		return apierrors.NewForbidden(r.GroupResource(), id, fmt.Errorf("user %q may not delete %s %s", c.user.GetName(), r.singular, id))
	}
	ctx := c.in("delete", r, namespace, name)
	audit.AddAuditAnnotation(ctx, auditAnnotation, fmt.Sprintf("%s %s/%s", r.Resource, namespace, name))
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	attributes := admission.NewAttributesRecord(nil, nil, r.GroupVersion().WithKind(r.kind), namespace, name,
		r.GroupVersionResource, "", admission.Delete, options, false, c.user)
	validate := rest.AdmissionToValidateObjectDeleteFunc(admission.WithAudit(c.Admission), attributes, admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme))
	_, _, err := s.Delete(ctx, name, validate, options)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// The object was deleted in the meantime, and another one may have its name by now.
		return errGone
	}
	return err
}

// errGone means that there is no object with this ID, or none any more.
var errGone = errors.New("the object does not exist")

// find returns the object with a UID. It first reads from the cache. Before it returns that
// there is no such object, it reads the latest state.
func find[T store.Object](ctx context.Context, s *genericStore, uid string) (T, error) {
	found, err := findBy[T](ctx, s, store.ByUID, uid)
	if err != nil || len(found) == 0 {
		var none T
		if err == nil {
			err = errGone
		}
		return none, err
	}
	return found[0], nil
}

func findBy[T store.Object](ctx context.Context, s *genericStore, index, want string) ([]T, error) {
	if want == "" {
		return nil, nil
	}
	ctx = request.WithNamespace(ctx, "")
	for _, freshness := range []store.Freshness{store.Cached, store.Latest} {
		found, err := store.Find[T](ctx, s, index, want, freshness)
		if err != nil || len(found) > 0 {
			return found, err
		}
	}
	return nil, nil
}
