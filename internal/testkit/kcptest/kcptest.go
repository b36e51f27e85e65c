// Package kcptest runs a real kcp as a separate process, for tests of its clients. Tests of the
// API server itself run one inside the test process, with the race detector; see kcpinside. The
// kcp is ready when it serves the types of config. Packages with more than one such test share
// one server:
//
//	func TestMain(m *testing.M) { os.Exit(kcptest.RunMain(m)) }
//
//	func TestX(t *testing.T) { upstream := kcptest.Shared(t); ... }
//
// The controllers of a kcp do not run in it.
package kcptest

import (
	"testing"

	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/testkit/apiprocess"
	"rik.dev/rik/internal/testkit/fixture"
)

// Server is a running kcp. Its Config connects as the administrator; see
// [LoopbackConfig] for the server's own user.
type Server = apiprocess.Server

var shared = fixture.Shared[*Server]{
	Name:  "kcptest",
	Start: Run,
	Stop:  (*Server).Stop,
}

// Start runs a kcp for one test and stops it when the test ends.
func Start(tb testing.TB) *Server {
	tb.Helper()
	return apiprocess.StartKind(tb, apiprocess.KCP)
}

// Run runs a kcp whose files are in dir. The caller must remove dir after the kcp has stopped.
func Run(dir string) (*Server, error) { return apiprocess.Run(dir, apiprocess.KCP) }

// RunMain runs the tests, stops the shared kcp if one was started, and returns the exit
// code.
func RunMain(m *testing.M) int { return shared.RunMain(m) }

// Shared returns the package's kcp. The first call starts it.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	return shared.Get(tb)
}

// LoopbackConfig connects as the kcp's own user, which has all permissions and may impersonate
// every user. The controllers inside a kcp use it. It uses JSON, which types defined by CRDs
// require. The caller owns the result.
func LoopbackConfig(s *Server) *rest.Config { return rest.CopyConfig(s.Own) }

// As connects as a user with a certificate of the kcp's authority, without a client-side rate
// limit.
func As(tb testing.TB, s *Server, user string, groups ...string) *rest.Config {
	tb.Helper()
	return s.AsUser(tb, user, groups...)
}

// AsSyncer connects as the syncer of the existing Cluster with that name.
func AsSyncer(tb testing.TB, s *Server, cluster string) *rest.Config {
	tb.Helper()
	return s.AsSyncer(tb, cluster)
}
