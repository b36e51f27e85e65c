package apitest

import (
	"rik.dev/rik/internal/apiserver/registry/inprocess"
	"rik.dev/rik/internal/controller/store"
)

// Instances returns a writer of instances inside the process, like that of the controller in a
// one-process cluster. Each call is one write to the datastore.
func (s *Server) Instances() store.Instances {
	return inprocess.NewInstances(s.API.Stores().Instances)
}
