package app

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/registry/inprocess"
)

// writes implements the controller's frequent writes in the process of the API server. Each call
// is one write to the datastore, without an API request.
type writes struct{ *inprocess.Instances }

// Bind stores the node and the status in one write.
func (w writes) Bind(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	return w.Update(ctx, in)
}

// Delete implements store.Instances.
func (w writes) Delete(ctx context.Context, namespace, name string, uid types.UID, graceSeconds *int64) error {
	return w.Instances.Delete(ctx, namespace, name, inprocess.DeleteOptions{UID: uid, GraceSeconds: graceSeconds})
}
