// Package v1alpha1 holds the objects by which a kcp negotiates the types that it
// serves: what each cluster offers, and what all of them can agree on.
//
// It holds types and names. The types are served as CRDs, which lie in config.
//
// +k8s:deepcopy-gen=package
// +groupName=apiresource.kcp.dev
package v1alpha1
