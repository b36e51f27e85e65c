package kube

import (
	"context"
	"testing"

	"rik.dev/rik/internal/testkit/fixture"
)

// sharedOptions are set by RunMain, before any test runs.
var sharedOptions Options

// shared is the one cluster of a test process. The first test that needs it starts it.
var shared = fixture.Shared[*Cluster]{
	Name:  "kube",
	Start: func(dir string) (*Cluster, error) { return Run(context.Background(), dir, sharedOptions) },
	Stop:  (*Cluster).Close,
}

// RunMain runs the tests of a package that share a cluster with these options, removes it, and
// returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(kube.RunMain(m, kube.Options{})) }
func RunMain(m *testing.M, options Options) int {
	sharedOptions = options
	return shared.RunMain(m)
}

// Shared returns the package's cluster. Tests on it use different namespaces or names, and must
// not stop or cut it.
func Shared(tb testing.TB) *Cluster {
	tb.Helper()
	return shared.Get(tb)
}
