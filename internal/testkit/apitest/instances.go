package apitest

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/internal/apiserver/registry/inprocess"
	"rik.dev/rik/internal/controller/store"
)

// Instances writes instances in process, as the controller does in a cluster of
// one process: one write to the datastore each.
func (s *Server) Instances() store.Instances {
	d := inprocess.NewInstances(s.API.Stores().Instances)
	return store.OverWriter(d, func(ctx context.Context, namespace, name string, uid types.UID, grace *int64) error {
		return d.Delete(ctx, namespace, name, inprocess.DeleteOptions{UID: uid, GraceSeconds: grace})
	})
}
