package controller

import (
	"net/http"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"

	"rik.dev/rik/internal/rpc/usage"
)

// WhyPermission returns the permission that a request to WhyHandler requires: to get the instance.
func WhyPermission(r *http.Request) authorizationv1.ResourceAttributes {
	namespace, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, WhyPath), "/")
	return authorizationv1.ResourceAttributes{Verb: "get", Resource: "instances", Namespace: namespace, Name: name}
}

// MetricsPermission returns the permission that a request to MetricsHandler requires: to list the
// objects.
func MetricsPermission(r *http.Request) authorizationv1.ResourceAttributes {
	p := authorizationv1.ResourceAttributes{Verb: "list", Resource: strings.TrimPrefix(r.URL.Path, usage.Path)}
	if p.Resource == "instances" {
		p.Namespace = r.URL.Query().Get("namespace")
	}
	return p
}
