package rikctl

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/config"
)

// TestWhyWithoutScheduler checks that the message names the missing scheduler, since when it is
// missing, and what to do.
func TestWhyWithoutScheduler(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"/api":  `{"kind":"APIVersions","versions":[]}`,
		"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"rik.dev","versions":[{"groupVersion":"rik.dev/v1alpha1","version":"v1alpha1"}],"preferredVersion":{"groupVersion":"rik.dev/v1alpha1","version":"v1alpha1"}}]}`,
		"/apis/rik.dev/v1alpha1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"rik.dev/v1alpha1","resources":[
			{"name":"instances","singularName":"instance","namespaced":true,"kind":"Instance","verbs":["get","list"]}]}`,
		"/apis/rik.dev/v1alpha1/namespaces/default/instances/web-1": `{"kind":"Instance","apiVersion":"rik.dev/v1alpha1","metadata":{"name":"web-1","namespace":"default"},"status":{"phase":"Pending"}}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
			body = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503,
				"message":"no scheduler has been connected to the controller since 2026-11-22T10:00:00Z: connection refused",
				"details":{"causes":[{"reason":"SchedulerUnavailable","message":"connection refused"}]}}`
		}
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	m := newMachine(t)
	m.env[config.EnvServer] = server.URL
	m.run(t, "why", "web-1").check(t, clierror.ExitUnreachable, "web-1 is Pending",
		"no scheduler has been connected to the controller since 2026-11-22T10:00:00Z", "next: start the scheduler", "--scheduler-url")
}
