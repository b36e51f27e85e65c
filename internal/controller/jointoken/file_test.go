package jointoken

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"rik.dev/rik/internal/rpc/jointoken"
)

// TestEnsureFile tests that the first start saves a token without an end, and that later starts keep
// the file, also if its token was deleted.
func TestEnsureFile(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tokens := New(fake.NewClientBuilder().Build(), authority(caHash), func() time.Time { return now })
	path := filepath.Join(t.TempDir(), "node-token")
	if err := tokens.EnsureFile(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v, %v, want 0600", info.Mode(), err)
	}
	now = now.Add(10 * 365 * 24 * time.Hour)
	if err := tokens.Verify(t.Context(), strings.TrimSpace(string(raw))); err != nil {
		t.Errorf("Verify() of the saved token after ten years = %v", err)
	}
	if err := tokens.EnsureFile(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(path); err != nil || string(again) != string(raw) {
		t.Errorf("the second start changed the file: %v", err)
	}
	if infos, err := tokens.List(t.Context()); err != nil || len(infos) != 1 {
		t.Errorf("List() = %+v, %v, want one token", infos, err)
	}
}

func TestPermission(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]authorizationv1.ResourceAttributes{
		"GET /rik/tokens/":              {Verb: "list", Resource: "jointokens"},
		"POST /rik/tokens/":             {Verb: "create", Resource: "jointokens"},
		"POST /rik/tokens/?role=server": {Verb: "create", Resource: "servertokens"},
		"POST /rik/tokens/?role=node":   {Verb: "create", Resource: "jointokens"},
		"DELETE /rik/tokens/abc":        {Verb: "delete", Resource: "jointokens", Name: "abc"},
	} {
		method, path, _ := strings.Cut(line, " ")
		if got := Permission(httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)); got != want {
			t.Errorf("%s requires %+v, want %+v", line, got, want)
		}
	}
}

// TestRoles accepts a token only for its role. Tokens without one are for nodes.
func TestRoles(t *testing.T) {
	t.Parallel()
	tokens := New(fake.NewClientBuilder().Build(), authority(caHash), time.Now)
	create := func(role jointoken.Role) string {
		t.Helper()
		token, err := tokens.Create(t.Context(), Options{Role: role})
		if err != nil {
			t.Fatal(err)
		}
		return token.Text()
	}
	for _, role := range []jointoken.Role{"", jointoken.RoleNode} {
		text := create(role)
		if err := errors.Join(tokens.Verify(t.Context(), text), tokens.Use(t.Context(), text)); err != nil {
			t.Errorf("the token with the role %q: %v", role, err)
		}
		if err := tokens.UseServer(t.Context(), text); !errors.Is(err, ErrRefused) {
			t.Errorf("UseServer() of a token with the role %q = %v, want ErrRefused", role, err)
		}
	}
	text := create(jointoken.RoleServer)
	if err := tokens.UseServer(t.Context(), text); err != nil {
		t.Errorf("UseServer() = %v", err)
	}
	for _, err := range []error{tokens.Verify(t.Context(), text), tokens.Use(t.Context(), text)} {
		if !errors.Is(err, ErrRefused) {
			t.Errorf("a node uses a server's token: %v, want ErrRefused", err)
		}
	}
}
