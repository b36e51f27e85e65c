package apitest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/testkit/scratch"
)

// shared is the one server of a test process. It is started by the first test
// that asks, so that a run of other tests alone does not pay for it.
var shared struct {
	mu     sync.Mutex
	opts   []Option
	inMain bool
	dir    *scratch.Dir
	server *Server
	err    error
}

// errNoMain says that nobody would stop the shared server.
var errNoMain = errors.New("programmer error: apitest.Shared needs apitest.RunMain in TestMain")

// RunMain runs the tests, stops the shared server if one was started, and
// returns the exit code. The options are the shared server's.
func RunMain(m *testing.M, opts ...Option) int {
	shared.mu.Lock()
	shared.opts, shared.inMain = opts, true
	shared.mu.Unlock()
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping the shared API server:", err)
		return max(code, 1)
	}
	return code
}

// Shared returns the package's server, which the first call starts.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil && shared.err == nil {
		shared.server, shared.err = startShared()
	}
	if shared.err != nil {
		tb.Fatalf("starting the shared API server: %v", shared.err)
	}
	return shared.server
}

// startShared is called with the lock held.
func startShared() (*Server, error) {
	if !shared.inMain {
		return nil, errNoMain
	}
	dir, err := scratch.New("rik-apitest-")
	if err != nil {
		return nil, err
	}
	server, err := start(append([]Option{func(c *apiserver.Config) { c.DataDir = dir.Path }}, shared.opts...))
	if err != nil {
		return nil, errors.Join(err, dir.Remove())
	}
	shared.dir = dir
	return server, nil
}

func stopShared() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		return nil
	}
	server := shared.server
	shared.server = nil
	return errors.Join(server.Stop(), shared.dir.Remove())
}
