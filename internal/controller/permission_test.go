package controller

import (
	"net/http"
	"net/http/httptest"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
)

func TestPermissions(t *testing.T) {
	t.Parallel()
	for path, tc := range map[string]struct {
		of   func(*http.Request) authorizationv1.ResourceAttributes
		want authorizationv1.ResourceAttributes
	}{
		"/rik/why/shop/web":                     {WhyPermission, authorizationv1.ResourceAttributes{Verb: "get", Resource: "instances", Namespace: "shop", Name: "web"}},
		"/rik/metrics/nodes?namespace=shop":     {MetricsPermission, authorizationv1.ResourceAttributes{Verb: "list", Resource: "nodes"}},
		"/rik/metrics/instances":                {MetricsPermission, authorizationv1.ResourceAttributes{Verb: "list", Resource: "instances"}},
		"/rik/metrics/instances?namespace=shop": {MetricsPermission, authorizationv1.ResourceAttributes{Verb: "list", Resource: "instances", Namespace: "shop"}},
	} {
		if got := tc.of(httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)); got != tc.want {
			t.Errorf("GET %s requires %+v, want %+v", path, got, tc.want)
		}
	}
}
