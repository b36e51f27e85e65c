// Package openapi has the OpenAPI schemas of the types of rik.dev, and of the types of Kubernetes
// that they contain.
package openapi
