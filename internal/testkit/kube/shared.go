package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"rik.dev/rik/internal/testkit/scratch"
)

// shared is the one cluster of a test process, started by the first test that asks.
var shared struct {
	mu      sync.Mutex
	options Options
	inMain  bool
	dir     *scratch.Dir
	cluster *Cluster
	err     error
}

// RunMain runs the tests of a package that share a cluster of these options, removes
// it, and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(kube.RunMain(m, kube.Options{})) }
func RunMain(m *testing.M, options Options) int {
	shared.mu.Lock()
	shared.options, shared.inMain = options, true
	shared.mu.Unlock()
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "removing the shared Kubernetes control plane:", err)
		return max(code, 1)
	}
	return code
}

// Shared returns the package's cluster. Tests on it keep apart by namespace or name,
// and do not stop or cut it.
func Shared(tb testing.TB) *Cluster {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.inMain {
		tb.Fatal("programmer error: kube.Shared needs kube.RunMain in TestMain")
	}
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = startShared()
	}
	if shared.err != nil {
		tb.Fatalf("starting the shared Kubernetes control plane: %v", shared.err)
	}
	return shared.cluster
}

// startShared is called with the lock held.
func startShared() (*Cluster, error) {
	dir, err := scratch.New("rik-kube-")
	if err != nil {
		return nil, err
	}
	c, err := Run(context.Background(), dir.Path, shared.options)
	if err != nil {
		return nil, errors.Join(err, dir.Remove())
	}
	shared.dir = dir
	return c, nil
}

func stopShared() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	c := shared.cluster
	if c == nil {
		return nil
	}
	shared.cluster = nil
	return errors.Join(c.Close(), shared.dir.Remove())
}
