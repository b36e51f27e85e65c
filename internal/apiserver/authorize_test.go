package apiserver_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"rik.dev/rik/internal/apiserver"
)

// TestAuthorized tests that a request reaches the handler only with the permission that it requires,
// also when the authorizer fails.
func TestAuthorized(t *testing.T) {
	t.Parallel()
	permission := func(r *http.Request) authorizationv1.ResourceAttributes {
		return authorizationv1.ResourceAttributes{Verb: "get", Resource: "instances", Namespace: "shop", Name: strings.TrimPrefix(r.URL.Path, "/x/")}
	}
	az := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		switch {
		case a.GetUser().GetName() == "broken":
			return authorizer.DecisionAllow, "", errors.ErrUnsupported
		case a.GetUser().GetName() == "ada" && a.GetVerb() == "get" && a.GetAPIGroup() == "rik.dev" && a.GetResource() == "instances" &&
			a.GetNamespace() == "shop" && a.GetName() == "web" && a.IsResourceRequest():
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "no role", nil
	})
	for name, tc := range map[string]struct {
		user, path string
		code       int
		says       string
	}{
		"allowed":        {"ada", "/x/web", http.StatusOK, "reached"},
		"another object": {"ada", "/x/db", http.StatusForbidden, `user ada may not get instances in namespace "shop": no role`},
		"another user":   {"bob", "/x/web", http.StatusForbidden, "user bob"},
		"failure":        {"broken", "/x/web", http.StatusForbidden, "user broken"},
		"no user":        {"", "/x/web", http.StatusUnauthorized, "no user"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if tc.user != "" {
				ctx = request.WithUser(ctx, &user.DefaultInfo{Name: tc.user})
			}
			answer := httptest.NewRecorder()
			apiserver.Authorized(az, permission, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("reached")) })).
				ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, tc.path, http.NoBody))
			if answer.Code != tc.code || !strings.Contains(answer.Body.String(), tc.says) {
				t.Errorf("the answer is %d %q, want %d %q", answer.Code, answer.Body, tc.code, tc.says)
			}
		})
	}
}

func TestLateHandler(t *testing.T) {
	t.Parallel()
	var late apiserver.LateHandler
	get := func() *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		late.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
		return answer
	}
	if answer := get(); answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Retry-After") == "" {
		t.Errorf("before Set, the answer is %d", answer.Code)
	}
	late.Set(http.NotFoundHandler())
	if answer := get(); answer.Code != http.StatusNotFound {
		t.Errorf("after Set, the answer is %d, want that of the handler", answer.Code)
	}
}
