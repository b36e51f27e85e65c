// Package rik holds the hub types of the group rik.dev: what the API server
// works with in memory, whatever version a client speaks. They are generated
// from api/rik/v1alpha1 and identical to it in memory; this package adds only
// their registration.
//
// +k8s:deepcopy-gen=package
// +groupName=rik.dev
package rik
