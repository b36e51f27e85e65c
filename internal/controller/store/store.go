// Package store defines how the controller writes Instances. It has the interface for these
// frequent writes and an implementation with an ordinary API client.
package store

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Instances writes Instances. Every method is safe for concurrent use, and returns the stored
// object, which belongs to the caller. A method neither changes nor keeps its arguments, nor
// anything to which they point: it copies what it changes, and callers pass parts of shared
// objects. The resource version guards updates. Errors are those of
// k8s.io/apimachinery/pkg/api/errors.
type Instances interface {
	Create(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error)
	// Bind stores spec.nodeName and the status, in one write if possible.
	Bind(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error)
	// Update stores metadata and spec. Removing the last finalizer of an instance that is being
	// deleted removes the instance.
	Update(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error)
	// UpdateStatus stores only the status.
	UpdateStatus(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error)
	// Delete requests the deletion of exactly the instance with the UID. A nil grace period means
	// that of the template.
	Delete(ctx context.Context, namespace, name string, uid types.UID, graceSeconds *int64) error
}

// OverClient writes through an API client. Its Bind needs two requests. If the second fails,
// the reconciler finds a bound instance without a phase and completes it.
func OverClient(c client.Client) Instances { return &overClient{client: c} }

type overClient struct{ client client.Client }

func (o *overClient) Create(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	out := in.DeepCopy()
	return out, o.client.Create(ctx, out)
}

func (o *overClient) Bind(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	out := in.DeepCopy()
	if err := o.client.Update(ctx, out); err != nil {
		return nil, fmt.Errorf("storing the node's name: %w", err)
	}
	out.Status = *in.Status.DeepCopy()
	return out, o.client.Status().Update(ctx, out)
}

func (o *overClient) Update(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	out := in.DeepCopy()
	return out, o.client.Update(ctx, out)
}

func (o *overClient) UpdateStatus(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	out := in.DeepCopy()
	return out, o.client.Status().Update(ctx, out)
}

func (o *overClient) Delete(ctx context.Context, namespace, name string, uid types.UID, grace *int64) error {
	in := &rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	return o.client.Delete(ctx, in, &client.DeleteOptions{
		GracePeriodSeconds: grace,
		Preconditions:      &metav1.Preconditions{UID: &uid},
	})
}
