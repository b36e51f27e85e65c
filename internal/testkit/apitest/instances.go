package apitest

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/internal/apiserver/registry/inprocess"
	"rik.dev/rik/internal/controller/store"
)

// Instances returns a writer of instances inside the process, like that of the controller in a
// one-process cluster. Each call is one write to the datastore.
func (s *Server) Instances() store.Instances {
	d := inprocess.NewInstances(s.API.Stores().Instances)
	return store.OverWriter(d, func(ctx context.Context, namespace, name string, uid types.UID, grace *int64) error {
		return d.Delete(ctx, namespace, name, inprocess.DeleteOptions{UID: uid, GraceSeconds: grace})
	})
}
