package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Route is a handler next to the Kubernetes-style API. Requests reach it after authentication,
// audit, fairness and panic recovery, with the user in the request's context. The handler
// itself must authorize, because only it can map a path to an object. It must call
// [Server.Authorizer] with the real verb and resource before it acts. It must run
// [Server.Admission] before a write, because direct registry calls skip admission.
type Route struct {
	// Path is matched exactly. If it ends in a slash, it is a prefix. "/" and the paths of the
	// Kubernetes-style API cannot be used.
	Path    string
	Handler http.Handler
	// Legacy routes are also served on Config.InsecureLegacyAddress.
	Legacy bool
}

func (r Route) isPrefix() bool { return strings.HasSuffix(r.Path, "/") }

func (r Route) matches(path string) bool {
	return path == r.Path || r.isPrefix() && strings.HasPrefix(path, r.Path)
}

// routeTable is filled once while the server is built, and only read afterward.
type routeTable struct {
	routes []Route
}

func (t *routeTable) match(path string) (Route, bool) {
	for _, route := range t.routes {
		if route.matches(path) {
			return route, true
		}
	}
	return Route{}, false
}

// install mounts the routes on the outermost server, because the inner one handles all paths
// below /api.
func (t *routeTable) install(server *genericapiserver.GenericAPIServer, routes []Route) error {
	mux := server.Handler.NonGoRestfulMux
	taken := map[string]bool{}
	for _, path := range mux.ListedPaths() {
		taken[path] = true
	}
	for _, route := range routes {
		switch {
		case !strings.HasPrefix(route.Path, "/") || route.Handler == nil:
			return fmt.Errorf("programmer error: route %q needs an absolute path and a handler", route.Path)
		case taken[route.Path] || route.Path == "/":
			return fmt.Errorf("programmer error: route %q is already taken", route.Path)
		}
		taken[route.Path] = true
		if route.isPrefix() {
			mux.HandlePrefix(route.Path, route.Handler)
		} else {
			mux.Handle(route.Path, route.Handler)
		}
	}
	t.routes = routes
	return nil
}

// routeInfo prevents the API server from parsing a route such as /api/v0/workloads.list as a
// resource of the core group.
type routeInfo struct {
	next  request.RequestInfoResolver
	table *routeTable
}

// NewRequestInfo implements request.RequestInfoResolver.
func (i routeInfo) NewRequestInfo(r *http.Request) (*request.RequestInfo, error) {
	if _, ok := i.table.match(r.URL.Path); ok {
		return &request.RequestInfo{Path: r.URL.Path, Verb: strings.ToLower(r.Method)}, nil
	}
	return i.next.NewRequestInfo(r)
}

// routeAuthorizer allows every authenticated user to reach the routes, which authorize by
// themselves.
type routeAuthorizer struct {
	table *routeTable
}

// Authorize implements authorizer.Authorizer.
func (a routeAuthorizer) Authorize(_ context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	if attributes.IsResourceRequest() || attributes.GetUser() == nil || isAnonymous(attributes.GetUser()) {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if _, ok := a.table.match(attributes.GetPath()); ok {
		return authorizer.DecisionAllow, "the route authorizes by itself", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func isAnonymous(u user.Info) bool {
	for _, group := range u.GetGroups() {
		if group == user.AllUnauthenticated {
			return true
		}
	}
	return u.GetName() == user.Anonymous
}
