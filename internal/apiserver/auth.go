package apiserver

import (
	"net"
	"net/http"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"rik.dev/rik/internal/apiserver/legacyhttp"
	"rik.dev/rik/internal/apiserver/listener"
)

// openPaths can be read without a credential, because load balancers and monitoring probes have
// none. All other paths answer 401.
var openPaths = []string{"/healthz", "/readyz", "/livez", "/version"}

// secure completes the configuration from the options, which already handles certificates and
// service account tokens. The authorizers in first are called first. RBAC decides where they
// have no opinion.
func secure(generic *genericapiserver.Config, connections *listener.Connections, routes *routeTable, first ...authorizer.Authorizer) {
	conditions := make([]apiserver.AnonymousAuthCondition, 0, len(openPaths))
	for _, path := range openPaths {
		conditions = append(conditions, apiserver.AnonymousAuthCondition{Path: path})
	}
	generic.Authentication.Authenticator = settling{connections: connections, next: union.New(
		authenticator.RequestFunc(legacyhttp.Authenticate),
		generic.Authentication.Authenticator,
		anonymous.NewAuthenticator(conditions),
	)}
	generic.Authorization.Authorizer = authorizerunion.New(append(first, generic.Authorization.Authorizer, routeAuthorizer{routes})...)
	generic.RequestInfoResolver = routeInfo{next: genericapiserver.NewRequestInfoResolver(generic), table: routes}
}

// settling reports authenticated connections to the count of connections.
type settling struct {
	connections *listener.Connections
	next        authenticator.Request
}

// AuthenticateRequest implements authenticator.Request.
func (s settling) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := s.next.AuthenticateRequest(r)
	if ok && err == nil && !isAnonymous(response.User) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		s.connections.Authenticated(local, r.RemoteAddr)
	}
	return response, ok, err
}
