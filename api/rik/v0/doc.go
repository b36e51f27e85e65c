// Package v0 holds the definitions of the published /api/v0 and of its gRPC
// services: a workload as {apiVersion, kind, name, replicas, spec} and an
// instance as {workload_id, namespace, id, kind, status, spec}.
//
// It decodes them strictly (an unknown field is an error with its path),
// converts a Definition to a rik.dev/v1alpha1 Workload without dropping
// anything, and renders today's objects for clients of that time. It does no
// I/O and knows no client; what a Workload may say is validated by the server.
package v0
