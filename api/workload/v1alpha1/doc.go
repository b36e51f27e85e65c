// Package v1alpha1 has the objects of a kcp that register clusters and place objects on them. It
// also has the names of the labels and annotations that send objects to clusters.
//
// It contains types, names and a few pure functions of one object. The types are served as CRDs.
// The CRDs are in the directory config.
//
// +k8s:deepcopy-gen=package
// +groupName=workload.kcp.dev
package v1alpha1
