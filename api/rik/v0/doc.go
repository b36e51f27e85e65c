// Package v0 holds the definitions of the published /api/v0 and of its gRPC services. A workload
// is {apiVersion, kind, name, replicas, spec}. An instance is {workload_id, namespace, id, kind,
// status, spec}.
//
// It decodes them strictly: an unknown field is an error with its path. It converts a Definition to
// a rik.dev/v1alpha1 Workload without loss. It also renders objects of rik.dev for published
// clients. It does no I/O and needs no client. The server validates the Workload.
package v0
