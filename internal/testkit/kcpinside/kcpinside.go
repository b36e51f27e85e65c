// Package kcpinside runs a real kcp inside a test process, with the race detector: the API
// server of apitest with the profile kcp, for tests of the API server itself. Other tests start
// the program; see kcptest. The kcp is ready when it serves the types of config. Packages with
// more than one such test share one server:
//
//	func TestMain(m *testing.M) { os.Exit(kcpinside.RunMain(m)) }
//
//	func TestX(t *testing.T) { upstream := kcpinside.Shared(t); ... }
//
// The controllers of a kcp do not run in it.
package kcpinside

import (
	"testing"

	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/multicluster/negotiation/plan/storage"
	"rik.dev/rik/internal/testkit/apitest"
)

// Server is a running kcp. Its Config connects as the administrator; see
// [LoopbackConfig] for the server's own user.
type Server = apitest.Server

// Option changes the configuration of a kcp before its start.
type Option = apitest.Option

// RunMain runs the tests, stops the shared kcp if one was started, and returns the exit code.
// The options are for the shared kcp.
func RunMain(m *testing.M, opts ...Option) int { return apitest.RunMain(m, profiled(opts)...) }

// Shared returns the package's kcp. The first call starts it.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	return apitest.Shared(tb)
}

// LoopbackConfig connects as the kcp's own user, which has all permissions and may impersonate
// every user. The controllers inside a kcp use it. It uses JSON, which types defined by CRDs
// require. The caller owns the result.
func LoopbackConfig(s *Server) *rest.Config { return rest.CopyConfig(s.Own) }

func profiled(opts []Option) []Option {
	return append([]Option{func(c *apiserver.Config) { c.Profile, c.Loss = apiserver.ProfileKCP, storage.Loss }}, opts...)
}
