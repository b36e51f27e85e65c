// Package inprocess writes instances without an HTTP request: in the same process, with the
// same validation, and in one write to the datastore each. The controller uses it for its
// frequent writes.
//
// Admission plugins run in the handlers of requests and do not see these writes. Neither does
// authorization, so only the controller may use this package.
package inprocess

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/registry/instance"
)

// Instances writes instances. All methods are safe for concurrent use and do not keep or change
// their arguments. Errors are those of the API.
type Instances struct{ storage *instance.Storage }

// NewInstances writes to a server's storage of instances.
func NewInstances(s *instance.Storage) *Instances { return &Instances{storage: s} }

var controller = &user.DefaultInfo{Name: rikv1alpha1.UserController}

// in returns the context of the controller's request to the storage.
func in(ctx context.Context, namespace string) context.Context {
	return genericapirequest.WithUser(genericapirequest.WithNamespace(ctx, namespace), controller)
}

// Create stores a new instance. It must have its revision and the fields that revision.Stamp
// sets. With generateName it gets a generated name.
func (d *Instances) Create(ctx context.Context, i *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	if i.Spec.Revision == "" {
		return nil, apierrors.NewBadRequest("the revision of a new instance is required")
	}
	// The storage sets fields of a new object.
	hub, err := internal(i.DeepCopy())
	if err != nil {
		return nil, err
	}
	out, err := d.storage.Whole.Create(in(ctx, i.Namespace), hub, nil, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return published(out)
}

// Update stores the metadata, node and status of an instance in one write, if it still has the
// given resource version. An instance that is being deleted and has no finalizer left is
// removed instead. The returned object is then its last state.
func (d *Instances) Update(ctx context.Context, i *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	hub, err := internal(i)
	if err != nil {
		return nil, err
	}
	// The information makes the copy that the storage changes.
	return update(ctx, i, rest.DefaultUpdatedObjectInfo(hub), d.storage.Whole.Update)
}

// UpdateStatus stores only the status of an instance, if it still has the given resource
// version.
func (d *Instances) UpdateStatus(ctx context.Context, i *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	hub, err := internal(i)
	if err != nil {
		return nil, err
	}
	return update(ctx, i, newStatus{hub}, d.storage.Status.Update)
}

// newStatus is the information of an update of the status. The storage takes everything else
// from the stored object, so only the status is copied.
type newStatus struct{ hub *rik.Instance }

// Preconditions returns the UID that the stored object must have, if it is known.
func (s newStatus) Preconditions() *metav1.Preconditions {
	if s.hub.UID == "" {
		return nil
	}
	return &metav1.Preconditions{UID: &s.hub.UID}
}

// UpdatedObject returns an object that the storage may change. The storage calls it again after
// a conflict in the datastore.
func (s newStatus) UpdatedObject(context.Context, runtime.Object) (runtime.Object, error) {
	out := *s.hub
	s.hub.Status.DeepCopyInto(&out.Status)
	return &out, nil
}

type updateFunc func(context.Context, string, rest.UpdatedObjectInfo, rest.ValidateObjectFunc, rest.ValidateObjectUpdateFunc, bool, *metav1.UpdateOptions) (runtime.Object, bool, error)

func update(ctx context.Context, i *rikv1alpha1.Instance, info rest.UpdatedObjectInfo, write updateFunc) (*rikv1alpha1.Instance, error) {
	out, _, err := write(in(ctx, i.Namespace), i.Name, info, nil, nil, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return published(out)
}

// Bind stores the node and the status in one write.
func (d *Instances) Bind(ctx context.Context, i *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	return d.Update(ctx, i)
}

// Delete marks an instance for deletion and sets its phase to Destroying. The instance stays
// until its last finalizer is removed. An instance that is already marked changes only if the
// grace period becomes shorter.
//
// The instance must have the UID; an empty one means any. The grace period is the time between
// SIGTERM and SIGKILL. Nil means that of the instance's revision. Zero means at once and without
// the node's confirmation.
func (d *Instances) Delete(ctx context.Context, namespace, name string, uid types.UID, graceSeconds *int64) error {
	options := &metav1.DeleteOptions{}
	if graceSeconds != nil {
		options.GracePeriodSeconds = new(*graceSeconds)
	}
	if uid != "" {
		options.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	_, _, err := d.storage.Whole.Delete(in(ctx, namespace), name, rest.ValidateAllObjectFunc, options)
	return err
}

// Get reads an instance from the datastore, without a cache.
func (d *Instances) Get(ctx context.Context, namespace, name string) (*rikv1alpha1.Instance, error) {
	out, err := d.storage.Whole.Get(in(ctx, namespace), name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return published(out)
}

// internal returns an instance as the hub type. Both share maps, slices and pointers.
func internal(i *rikv1alpha1.Instance) (*rik.Instance, error) {
	hub := &rik.Instance{}
	return hub, v1alpha1.Convert_v1alpha1_Instance_To_rik_Instance(i, hub, nil)
}

// published returns an instance of the storage as the versioned type. Both share maps, slices and
// pointers: the storage gives each caller an object of its own.
func published(obj runtime.Object) (*rikv1alpha1.Instance, error) {
	hub, ok := obj.(*rik.Instance)
	if !ok {
		return nil, fmt.Errorf("programmer error: %T is not an instance", obj)
	}
	out := &rikv1alpha1.Instance{}
	return out, v1alpha1.Convert_rik_Instance_To_v1alpha1_Instance(hub, out, nil)
}
