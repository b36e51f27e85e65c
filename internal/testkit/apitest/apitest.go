// Package apitest runs rik's real API server inside a test process: embedded
// etcd, TLS on a loopback port that the kernel chose, RBAC, Kubernetes'
// controllers. Nothing in it is faked, so a start takes about a second, and
// several under the race detector: it is for tests of the API server itself. Tests of
// what uses one have it in a process of its own; see apiprocess. Packages with more than
// one such test share one server:
//
//	func TestMain(m *testing.M) { os.Exit(apitest.RunMain(m)) }
//
//	func TestX(t *testing.T) { server := apitest.Shared(t); ... }
//
// Tests on a shared server keep apart by namespace; see [served.Server.Namespace].
package apitest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/testkit/served"
)

const (
	// EnvLog shows the servers' log when it is set to a slog level such as debug.
	EnvLog = served.EnvLog
	// Timeout is how long the package waits for a server, and a good deadline
	// for tests that poll one.
	Timeout = served.Timeout
)

// Option changes the configuration that a server is started with.
type Option func(*apiserver.Config)

// Server is a running API server.
type Server struct {
	*served.Server
	// API is the server itself, for what is reached in process.
	API *apiserver.Server

	cancel  context.CancelFunc
	stopped chan error
	once    sync.Once
	result  error
}

// Start runs a server of its own for one test, in a directory of its own unless
// an option sets DataDir, and stops it when the test ends.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s, err := start(append([]Option{func(c *apiserver.Config) { c.DataDir = tb.TempDir() }}, opts...))
	if err != nil {
		tb.Fatalf("starting an API server: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Stop(); err != nil {
			tb.Errorf("stopping the API server: %v", err)
		}
	})
	return s
}

// Stop ends the server and returns what Run returned. It may be called again.
func (s *Server) Stop() error {
	s.once.Do(func() {
		s.cancel()
		s.result = <-s.stopped
	})
	return s.result
}

func start(opts []Option) (*Server, error) {
	cfg := apiserver.Config{BindAddress: "127.0.0.1", Logger: logger()}
	for _, opt := range opts {
		opt(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	api, err := apiserver.New(ctx, cfg)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &Server{API: api, cancel: cancel, stopped: make(chan error, 1)}
	go func() { s.stopped <- api.Run(ctx) }()
	if err := s.awaitReady(); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	if s.Server, err = served.Connect(api.DataDir()); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	s.Own = api.LoopbackConfig()
	s.Own.ContentType, s.Own.AcceptContentTypes = "application/json", ""
	s.Own.QPS = -1
	return s, nil
}

func (s *Server) awaitReady() error {
	timer := time.NewTimer(Timeout)
	defer timer.Stop()
	select {
	case <-s.API.Ready():
		return nil
	case err := <-s.stopped:
		s.stopped <- err // for Stop
		return errors.New("server ended before it was ready")
	case <-timer.C:
		return fmt.Errorf("server was not ready after %s", Timeout)
	}
}

func logger() *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(os.Getenv(EnvLog))); err != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}
