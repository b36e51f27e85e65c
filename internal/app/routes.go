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
)

// routes of the control plane beside the API: the published one, explanations,
// metrics and join tokens. A user may see the second and third who may get the
// objects that they speak of.
type routes struct{ why, metrics, tokens lateHandler }

func (r *routes) list(s *apiserver.Server) ([]apiserver.Route, error) {
	published, err := restv0.Routes(s)
	if err != nil {
		return nil, err
	}
	return append(published, []apiserver.Route{
		{Path: controller.WhyPath, Handler: allowed(s.Authorizer(), whyAttributes, &r.why)},
		{Path: controller.MetricsPath, Handler: allowed(s.Authorizer(), metricsAttributes, &r.metrics)},
		{Path: jointoken.Path, Handler: allowed(s.Authorizer(), tokenAttributes, &r.tokens)},
	}...), nil
}

// whyAttributes: who may get the instance may ask why it is where it is.
func whyAttributes(r *http.Request) authorizer.AttributesRecord {
	namespace, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, controller.WhyPath), "/")
	return authorizer.AttributesRecord{Verb: "get", Resource: "instances", Namespace: namespace, Name: name}
}

// metricsAttributes: who may list the objects may see what they use.
func metricsAttributes(r *http.Request) authorizer.AttributesRecord {
	resource := strings.TrimPrefix(r.URL.Path, controller.MetricsPath)
	a := authorizer.AttributesRecord{Verb: "list", Resource: resource}
	if resource == "instances" {
		a.Namespace = r.URL.Query().Get("namespace")
	}
	return a
}

// tokenAttributes: tokens are no objects of the API, and RBAC speaks of them all
// the same.
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

// allowed asks the authorizer before a request reaches the handler.
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
