// Package v1alpha1 has the objects of a rik cluster: Workload, WorkloadRevision, Instance, Node
// and Tenant.
//
// It contains types, names and a few pure functions of one object. Defaulting, validation and
// storage are in internal/apiserver, so that the riklet can import this package and stay small.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:protobuf-gen=package
// +groupName=rik.dev
package v1alpha1
