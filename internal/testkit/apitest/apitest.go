// Package apitest runs rik's real API server inside a test process: embedded etcd, TLS on a
// loopback port chosen by the kernel, RBAC, Kubernetes' controllers. Nothing is faked, so a
// start takes about a second, and several seconds under the race detector. It is for tests of
// the API server itself. Tests of its clients use a separate process; see apiprocess. Packages
// with more than one such test share one server:
//
//	func TestMain(m *testing.M) { os.Exit(apitest.RunMain(m)) }
//
//	func TestX(t *testing.T) { server := apitest.Shared(t); ... }
//
// Tests on a shared server use different namespaces; see [served.Server.Namespace].
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
	// EnvLog shows the servers' log if it is set to a slog level such as debug.
	EnvLog = served.EnvLog
	// Timeout is how long the package waits for a server. It is also a good deadline for tests
	// that poll one.
	Timeout = served.Timeout
)

// Option changes the configuration of a server before its start.
type Option func(*apiserver.Config)

// Server is a running API server.
type Server struct {
	*served.Server
	// API is the server itself, for access inside the process.
	API *apiserver.Server

	cancel  context.CancelFunc
	stopped chan error
	once    sync.Once
	result  error
}

// Start runs a server for one test, in a new directory unless an option sets DataDir, and stops
// it when the test ends.
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

// Stop stops the server and returns the result of Run. It may be called again.
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
