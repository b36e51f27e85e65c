// Package v1alpha1 holds the objects of a rik cluster: Workload,
// WorkloadRevision, Instance, Node and Tenant.
//
// It holds types, names and the few answers that are a plain function of one
// object. Defaulting, validation and storage live in internal/apiserver, so
// that the node agent can import this package and stay small.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:protobuf-gen=package
// +groupName=rik.dev
package v1alpha1
