// Package apiprocess runs rik's real API server of a cluster, without its controllers, as a
// separate process. It is for tests of the server's clients. Tests of the API server itself run
// it inside the test process, with the race detector; see apitest. Packages with more than one
// such test share one server:
//
//	func TestMain(m *testing.M) { os.Exit(apiprocess.RunMain(m)) }
//
//	func TestX(t *testing.T) { server := apiprocess.Shared(t); ... }
//
// Tests on a shared server use different namespaces; see [served.Server.Namespace].
package apiprocess

import (
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"rik.dev/rik/internal/testkit/fixture"
	"rik.dev/rik/internal/testkit/process"
	"rik.dev/rik/internal/testkit/program"
	"rik.dev/rik/internal/testkit/served"
)

// Server is a running API server. It ends with the test process.
type Server struct {
	*served.Server
	process *process.Process
}

// Kind is the kind of an API server.
type Kind string

const (
	// Cluster is the API server of a rik cluster.
	Cluster Kind = "cluster"
	// SQLite is the same with an SQLite database.
	SQLite Kind = "sqlite"
	// KCP is the API server of a kcp; see kcptest.
	KCP Kind = "kcp"
)

var shared = fixture.Shared[*Server]{
	Name:  "apiprocess",
	Start: func(dir string) (*Server, error) { return Run(dir, Cluster) },
	Stop:  (*Server).Stop,
}

// RunMain runs the tests, stops the shared server if one was started, and returns the exit code.
func RunMain(m *testing.M) int { return shared.RunMain(m) }

// Shared returns the package's server. The first call starts it.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	return shared.Get(tb)
}

// Start runs a server for one test, and stops it when the test ends.
func Start(tb testing.TB) *Server {
	tb.Helper()
	return StartKind(tb, Cluster)
}

// StartKind is Start for a kind of server.
func StartKind(tb testing.TB, kind Kind) *Server {
	tb.Helper()
	return start(tb, tb.TempDir(), kind)
}

// StartOn is StartKind on the data directory, [Data], that an earlier server has left in dir.
func StartOn(tb testing.TB, dir string, kind Kind) *Server {
	tb.Helper()
	return start(tb, dir, kind)
}

// Data returns the data directory of a server whose files are in dir.
func Data(dir string) string { return filepath.Join(dir, "data") }

func start(tb testing.TB, dir string, kind Kind) *Server {
	tb.Helper()
	s, err := Run(dir, kind)
	if err != nil {
		tb.Fatalf("starting an API server: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Stop(); err != nil {
			tb.Errorf("stopping the API server: %v", err)
		}
		if tb.Failed() {
			tb.Logf("the API server's log ended with:\n%s", s.process.Tail())
		}
	})
	return s
}

// Run runs a server whose files are in dir. The caller must remove dir after the server has
// stopped.
func Run(dir string, kind Kind) (*Server, error) {
	path, err := program.Testserver()
	if err != nil {
		return nil, err
	}
	data := Data(dir)
	p, err := process.Start(path, filepath.Join(dir, "log"), string(kind), data)
	if err != nil {
		return nil, err
	}
	s := &Server{process: p}
	if err := s.connect(data); err != nil {
		p.Kill()
		return nil, err
	}
	return s, nil
}

// own is the server's own user. From outside, only a certificate of its authority grants access
// as this user.
var own = pkix.Name{CommonName: "system:apiserver", Organization: []string{"system:masters"}}

func (s *Server) connect(data string) error {
	_, err := s.process.AwaitLine("ready https://", served.Timeout)
	if err != nil {
		return err
	}
	if s.Server, err = served.Connect(data); err != nil {
		return err
	}
	s.Own, err = s.ConfigFor(own)
	return err
}

// Stop stops the server. It returns an error unless the server exits successfully. It may be
// called again.
func (s *Server) Stop() error {
	err := s.process.Stop()
	if os.Getenv(served.EnvLog) != "" {
		_, writing := fmt.Fprintln(os.Stderr, s.process.Log())
		err = errors.Join(err, writing)
	}
	return err
}
