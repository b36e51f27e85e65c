package jointoken

import (
	"net/http"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"

	"rik.dev/rik/internal/rpc/jointoken"
)

// Permission returns the permission that a request to Handler requires. Tokens are not
// objects of the API, so all requests use one RBAC resource, but the creation of a token for a server
// has its own.
func Permission(r *http.Request) authorizationv1.ResourceAttributes {
	p := authorizationv1.ResourceAttributes{Resource: jointoken.Resource, Name: strings.TrimPrefix(r.URL.Path, jointoken.Path)}
	if r.Method == http.MethodPost && jointoken.Role(r.URL.Query().Get(jointoken.RoleParameter)) == jointoken.RoleServer {
		p.Resource = jointoken.ServerResource
	}
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
