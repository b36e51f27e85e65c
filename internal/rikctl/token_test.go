package rikctl

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/config"
	"rik.dev/rik/internal/rpc/jointoken"
)

// TestTokenCommands runs against a fake server with one token. The tests of the server cover its
// behavior.
func TestTokenCommands(t *testing.T) {
	t.Parallel()
	asked := make(chan jointoken.Request, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.Method + " " + r.URL.Path {
		case "POST " + jointoken.Path:
			var request jointoken.Request
			_ = json.NewDecoder(r.Body).Decode(&request)
			asked <- request
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(jointoken.Created{Token: "rik1.hash.abcd.secret"})
		case "GET " + jointoken.Path:
			_ = json.NewEncoder(w).Encode(jointoken.List{Items: []jointoken.Info{{ID: "abcd", Description: "rack 7"}}})
		case "DELETE " + jointoken.Path + "abcd":
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"jointokens \"none\" not found","code":404}`))
		}
	})
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	m := newMachine(t)
	m.env[config.EnvServer] = server.URL

	if r := m.run(t, "token", "create", "--ttl", "90m", "--description", "rack 7"); r.code != clierror.ExitOK || r.out != "rik1.hash.abcd.secret\n" {
		t.Errorf("create ended with %d and printed %q, %q: only the token is wanted", r.code, r.out, r.err)
	}
	if request := <-asked; request != (jointoken.Request{Seconds: 5400, Description: "rack 7"}) {
		t.Errorf("asked was %+v", request)
	}
	m.run(t, "token", "create").check(t, clierror.ExitOK)
	if request := <-asked; request.Seconds != 24*3600 {
		t.Errorf("without --ttl a token lives %d s, want a day", request.Seconds)
	}
	m.run(t, "token", "list").check(t, clierror.ExitOK, "abcd", "rack 7", "LAST USED")
	m.run(t, "token", "list", "-o", "json").check(t, clierror.ExitOK, `"id": "abcd"`)
	m.run(t, "token", "delete", "abcd").check(t, clierror.ExitOK, "token abcd revoked")
	m.run(t, "token", "delete", "none").check(t, clierror.ExitNotFound, "not found", "rikctl token list")
	for _, line := range []string{"token create --ttl -1s", "token create --ttl 1ms", "token create x", "token delete", "token list -o yaml", "token nonsense"} {
		m.run(t, strings.Fields(line)...).check(t, clierror.ExitUsage)
	}
}
