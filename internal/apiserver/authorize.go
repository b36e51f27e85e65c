package apiserver

import (
	"net/http"
	"sync/atomic"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Authorized returns a handler of a [Route] that calls next only if the user has the permission
// that a request requires. permission sets the verb, the resource, the namespace and the name. The
// API group and its version are always those of rik.
func Authorized(az authorizer.Authorizer, permission func(*http.Request) authorizationv1.ResourceAttributes, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, ok := request.UserFrom(r.Context())
		if !ok {
			http.Error(w, "no user", http.StatusUnauthorized)
			return
		}
		p := permission(r)
		a := authorizer.AttributesRecord{
			User: user, ResourceRequest: true, Verb: p.Verb, Resource: p.Resource, Namespace: p.Namespace, Name: p.Name,
			APIGroup: rikv1alpha1.GroupName, APIVersion: rikv1alpha1.SchemeGroupVersion.Version,
		}
		decision, reason, err := az.Authorize(r.Context(), a)
		if err != nil || decision != authorizer.DecisionAllow {
			http.Error(w, "user "+user.GetName()+" may not "+a.Verb+" "+a.Resource+" in namespace \""+a.Namespace+"\": "+reason, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// LateHandler is the handler of a route that needs the controller. The routes of a server are fixed
// before the controller exists. Until Set is called, it answers 503.
type LateHandler struct{ handler atomic.Pointer[http.Handler] }

// Set sets the handler of all later requests.
func (l *LateHandler) Set(h http.Handler) { l.handler.Store(&h) }

// ServeHTTP implements http.Handler.
func (l *LateHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := l.handler.Load()
	if h == nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the controller is starting", http.StatusServiceUnavailable)
		return
	}
	(*h).ServeHTTP(w, r)
}
