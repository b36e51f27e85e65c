package jointoken

import (
	"net/http"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"

	"rik.dev/rik/internal/rpc/jointoken"
)

// Permission returns the permission that a request to Handler requires. All requests use the same
// RBAC resource, because tokens are not objects of the API.
func Permission(r *http.Request) authorizationv1.ResourceAttributes {
	p := authorizationv1.ResourceAttributes{Resource: jointoken.Resource, Name: strings.TrimPrefix(r.URL.Path, jointoken.Path)}
	switch r.Method {
	case http.MethodGet:
		p.Verb = "list"
	case http.MethodDelete:
		p.Verb = "delete"
	default:
		p.Verb = "create"
	}
	return p
}
