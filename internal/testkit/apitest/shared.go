package apitest

import (
	"testing"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/testkit/fixture"
)

// sharedOptions are set by RunMain, before any test runs.
var sharedOptions []Option

// shared is the one server of a test process.
var shared = fixture.Shared[*Server]{Name: "apitest", Start: startShared, Stop: (*Server).Stop}

func startShared(dir string) (*Server, error) {
	return start(append([]Option{func(c *apiserver.Config) { c.DataDir = dir }}, sharedOptions...))
}

// RunMain runs the tests, stops the shared server if one was started, and returns the exit code.
// The options are for the shared server.
func RunMain(m *testing.M, opts ...Option) int {
	sharedOptions = opts
	return shared.RunMain(m)
}

// Shared returns the package's server. The first call starts it.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	return shared.Get(tb)
}
