package rikctl

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/config"
)

// waitable is a server with one instance, which changes between answers.
type waitable struct {
	mu   sync.Mutex
	gone bool
	asks int
}

func (s *waitable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const path = "/apis/rik.dev/v1alpha1/namespaces/default/instances"
	const object = `{"kind":"Instance","apiVersion":"rik.dev/v1alpha1","metadata":{"name":"web-1","namespace":"default","uid":"u1","resourceVersion":"7"},"status":{"phase":"Creating","reason":"ImagePullFailed"}}`
	answers := map[string]string{
		"/api":  `{"kind":"APIVersions","versions":[]}`,
		"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"rik.dev","versions":[{"groupVersion":"rik.dev/v1alpha1","version":"v1alpha1"}],"preferredVersion":{"groupVersion":"rik.dev/v1alpha1","version":"v1alpha1"}}]}`,
		"/apis/rik.dev/v1alpha1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"rik.dev/v1alpha1","resources":[
			{"name":"instances","singularName":"instance","namespaced":true,"kind":"Instance","verbs":["get","list","watch"]}]}`,
		path + "/web-1": object,
		path:            `{"kind":"InstanceList","apiVersion":"rik.dev/v1alpha1","metadata":{"resourceVersion":"7"},"items":[` + object + `]}`,
	}
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	if r.URL.Path == path+"/web-1" {
		s.asks++
	}
	gone := s.gone && s.asks > 1
	s.mu.Unlock()
	body, ok := answers[r.URL.Path]
	switch {
	case r.URL.Query().Get("watch") != "":
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	case !ok || gone && strings.HasPrefix(r.URL.Path, path):
		w.WriteHeader(http.StatusNotFound)
		body = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"instances \"web-1\" not found"}`
	}
	_, _ = io.WriteString(w, body)
}

// wait reports the state of the object on a timeout, and ends when the object is deleted.
func TestWaitSaysWhatItSaw(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		gone    bool
		timeout string
		code    int
		says    []string
	}{
		"timeout": {false, "2s", clierror.ExitUnreachable, []string{"instances/web-1", "phase Creating", "reason ImagePullFailed"}},
		"once":    {false, "0s", clierror.ExitUnreachable, []string{"condition not met", "phase Creating"}},
		"deleted": {true, "10m", clierror.ExitNotFound, []string{"instances/web-1 was deleted during the wait"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(&waitable{gone: tc.gone})
			t.Cleanup(server.Close)
			m := newMachine(t)
			m.env[config.EnvServer] = server.URL
			m.run(t, "wait", "instance/web-1", "--for=phase=Running", "--timeout="+tc.timeout).check(t, tc.code, tc.says...)
		})
	}
}
