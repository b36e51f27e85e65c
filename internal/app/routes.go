package app

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/restv0"
	"rik.dev/rik/internal/controller"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/usage"
)

// routes are the paths of the control plane next to the API: the published API, explanations,
// metrics and join tokens. Explanations and metrics require permission to read the objects that
// they describe.
type routes struct{ why, metrics, tokens lateHandler }

func (r *routes) list(s *apiserver.Server) ([]apiserver.Route, error) {
	published, err := restv0.Routes(s)
	if err != nil {
		return nil, err
	}
	return append(published, []apiserver.Route{
		{Path: controller.WhyPath, Handler: allowed(s.Authorizer(), whyAttributes, &r.why)},
		{Path: usage.Path, Handler: allowed(s.Authorizer(), metricsAttributes, &r.metrics)},
		{Path: jointoken.Path, Handler: allowed(s.Authorizer(), tokenAttributes, &r.tokens)},
	}...), nil
}

// whyAttributes requires permission to get the instance.
func whyAttributes(r *http.Request) authorizer.AttributesRecord {
	namespace, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, controller.WhyPath), "/")
	return authorizer.AttributesRecord{Verb: "get", Resource: "instances", Namespace: namespace, Name: name}
}

// metricsAttributes requires permission to list the objects.
func metricsAttributes(r *http.Request) authorizer.AttributesRecord {
	resource := strings.TrimPrefix(r.URL.Path, usage.Path)
	a := authorizer.AttributesRecord{Verb: "list", Resource: resource}
	if resource == "instances" {
		a.Namespace = r.URL.Query().Get("namespace")
	}
	return a
}

// tokenAttributes uses the same RBAC resource for all requests about tokens, because tokens are
// not objects of the API.
func tokenAttributes(r *http.Request) authorizer.AttributesRecord {
	a := authorizer.AttributesRecord{Resource: jointoken.Resource, Name: strings.TrimPrefix(r.URL.Path, jointoken.Path)}
	switch r.Method {
	case http.MethodGet:
		a.Verb = "list"
	case http.MethodDelete:
		a.Verb = "delete"
	default:
		a.Verb = "create"
	}
	return a
}

// allowed authorizes a request before it reaches the handler.
func allowed(az authorizer.Authorizer, attributes func(*http.Request) authorizer.AttributesRecord, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, ok := request.UserFrom(r.Context())
		if !ok {
			http.Error(w, "no user", http.StatusUnauthorized)
			return
		}
		a := attributes(r)
		a.User, a.ResourceRequest = user, true
		a.APIGroup, a.APIVersion = rikv1alpha1.GroupName, rikv1alpha1.SchemeGroupVersion.Version
		decision, reason, err := az.Authorize(r.Context(), a)
		if err != nil || decision != authorizer.DecisionAllow {
			http.Error(w, "user "+user.GetName()+" may not "+a.Verb+" "+a.Resource+" in namespace \""+a.Namespace+"\": "+reason, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
