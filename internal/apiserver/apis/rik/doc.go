// Package rik holds the hub types of the group rik.dev. The API server uses them in memory,
// independently of the version that a client uses. They are generated from api/rik/v1alpha1, and
// have the same layout in memory. This package adds only their registration.
//
// +k8s:deepcopy-gen=package
// +groupName=rik.dev
package rik
