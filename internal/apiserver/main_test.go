package apiserver_test

import (
	"net/http"
	"os"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/registry/registrytest"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/testkit/apitest"
)

func TestMain(m *testing.M) {
	os.Exit(apitest.RunMain(m, func(c *apiserver.Config) {
		c.Sessions = echo
		c.InsecureLegacyAddress = "127.0.0.1:0"
		c.Routes = func(*apiserver.Server) ([]apiserver.Route, error) { return routes, nil }
	}))
}

// routes of the shared server, in addition to its own.
var routes = []apiserver.Route{
	{Path: "/api/v0/", Handler: whoami, Legacy: true},
	{Path: "/api/v1/instances.list", Handler: whoami, Legacy: true},
	{Path: "/ui/", Handler: whoami},
	{Path: "/panic", Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("as a test") })},
}

// whoami responds with the user that the server's filters found.
var whoami = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	user, ok := request.UserFrom(r.Context())
	if !ok {
		http.Error(w, "no user", http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte(user.GetName() + " " + r.Method + " " + r.URL.Path))
})

// echo answers a log request with one line and a command with its input, and accepts every hold
// request. images answers requests about images.
var echo = &registrytest.Node{
	Opened: make(chan *nodev1.OpenSession, 64),
	Script: func(s *registrytest.FarEnd, open *nodev1.OpenSession) *nodev1.SessionEnd {
		if open.GetLog() != nil {
			s.Out("a line\n")
			return &nodev1.SessionEnd{}
		}
		if open.GetHold() != nil {
			return &nodev1.SessionEnd{}
		}
		if open.GetImages() != nil {
			return images(s, open.GetImages())
		}
		for {
			d := s.Read()
			if d == nil {
				return nil
			}
			s.Out(string(d.GetData()))
			if d.GetEndOfInput() {
				return &nodev1.SessionEnd{ExitCode: 7}
			}
		}
	},
}
