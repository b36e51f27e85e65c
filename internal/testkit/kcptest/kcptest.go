// Package kcptest runs a real kcp, as a process of its own, for tests of what uses it.
// Tests of the API server itself have one inside, with the race detector; see
// kcpinside. It is ready when the types of config are served. Packages with more than one
// such test share one server:
//
//	func TestMain(m *testing.M) { os.Exit(kcptest.RunMain(m)) }
//
//	func TestX(t *testing.T) { upstream := kcptest.Shared(t); ... }
//
// The controllers of a kcp are not run in it.
package kcptest

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
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

// Start runs a kcp of its own for one test and stops it when the test ends.
func Start(tb testing.TB) *Server {
	tb.Helper()
	return apiprocess.StartKind(tb, apiprocess.KCP)
}

// Run runs a kcp whose files lie in dir, which is the caller's to remove once it is
// stopped.
func Run(dir string) (*Server, error) { return apiprocess.Run(dir, apiprocess.KCP) }

// RunMain runs the tests, stops the shared kcp if one was started, and returns the exit
// code.
func RunMain(m *testing.M) int { return shared.RunMain(m) }

// Shared returns the package's kcp, which the first call starts.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	return shared.Get(tb)
}

// LoopbackConfig connects as the kcp's own all-powerful user, as the controllers inside
// a kcp do, who may impersonate everyone. It speaks JSON, which types defined by CRDs
// need. The caller owns the result.
func LoopbackConfig(s *Server) *rest.Config { return rest.CopyConfig(s.Own) }

// As connects as a user with a certificate of the kcp's authority, and without a
// client-side rate limit.
func As(tb testing.TB, s *Server, user string, groups ...string) *rest.Config {
	tb.Helper()
	return s.AsUser(tb, user, groups...)
}

// AsSyncer connects as the syncer of the Cluster that there is of that name.
func AsSyncer(tb testing.TB, s *Server, cluster string) *rest.Config {
	tb.Helper()
	return s.AsSyncer(tb, cluster)
}

// AsSyncerOf connects as the syncer of a Cluster of that UID, whether there is one or
// not.
func AsSyncerOf(tb testing.TB, s *Server, cluster string, uid types.UID) *rest.Config {
	tb.Helper()
	return s.AsSyncerOf(tb, cluster, uid)
}

// Kubectl runs the real kubectl as the administrator of s; see [served.Server.Kubectl].
func Kubectl(tb testing.TB, s *Server, input string, args ...string) (string, error) {
	tb.Helper()
	return s.Kubectl(tb, input, args...)
}
