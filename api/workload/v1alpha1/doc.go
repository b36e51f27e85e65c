// Package v1alpha1 holds the objects by which a kcp knows the clusters that work is
// sent to, and the names of the labels and annotations that send it there.
//
// It holds types, names and the few answers that are a plain function of one object.
// The types are served as CRDs, which lie in config.
//
// +k8s:deepcopy-gen=package
// +groupName=workload.kcp.dev
package v1alpha1
