// Package v1alpha1 has the objects with which a kcp negotiates the types that it serves: the
// types of each cluster, and the schemas on which the clusters agree.
//
// It contains types and names. The types are served as CRDs. The CRDs are in the directory
// config.
//
// +k8s:deepcopy-gen=package
// +groupName=apiresource.kcp.dev
package v1alpha1
