// Package openapi has the OpenAPI schemas of all types that the server serves. These are types of
// Kubernetes and of rik.dev.
package openapi

import (
	"maps"

	"k8s.io/kube-openapi/pkg/common"
	kubernetes "k8s.io/kubernetes/pkg/generated/openapi"
)

// Definitions returns the schemas of all served types, for the server's OpenAPI configuration.
func Definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := kubernetes.GetOpenAPIDefinitions(ref)
	maps.Copy(all, GetOpenAPIDefinitions(ref))
	return all
}
