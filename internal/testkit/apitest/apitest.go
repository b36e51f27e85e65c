// Package apitest runs rik's real API server inside a test process: embedded
// etcd, TLS on a loopback port that the kernel chose, RBAC, Kubernetes'
// controllers. Nothing in it is faked, so a start takes about a second, and
// several under the race detector. Packages with more than one such test share
// one server:
//
//	func TestMain(m *testing.M) { os.Exit(apitest.RunMain(m)) }
//
//	func TestX(t *testing.T) { server := apitest.Shared(t); ... }
//
// Tests on a shared server keep apart by namespace; see [Server.Namespace].
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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"rik.dev/rik/internal/apiserver"
)

const (
	// EnvLog shows the servers' log when it is set to a slog level such as debug.
	EnvLog = "RIK_TEST_LOG"
	// Patience is how long the package waits for a server, and a good deadline
	// for tests that poll one: two busy cores under the race detector are slow.
	Patience = 2 * time.Minute
)

// Option changes the configuration that a server is started with.
type Option func(*apiserver.Config)

// Server is a running API server.
type Server struct {
	// API is the server itself, for what is reached in process.
	API *apiserver.Server
	// URL is the server's https URL.
	URL string
	// CAPEM is the certificate that the server's is signed with.
	CAPEM []byte
	// DataDir holds admin.kubeconfig, config.yaml and everything else.
	DataDir string
	// Config connects as the administrator, with the certificate of the
	// generated kubeconfig and no client-side rate limit. Copy before changing.
	Config *rest.Config
	// Client is a clientset over Config.
	Client kubernetes.Interface

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
	s := &Server{API: api, URL: api.URL(), CAPEM: api.Authority().CertificatePEM(), DataDir: api.DataDir(), cancel: cancel, stopped: make(chan error, 1)}
	go func() { s.stopped <- api.Run(ctx) }()
	if err := errors.Join(s.awaitReady(), s.connect()); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Server) awaitReady() error {
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-s.API.Ready():
		return nil
	case err := <-s.stopped:
		s.stopped <- err // for Stop
		return errors.New("server ended before it was ready")
	case <-timer.C:
		return fmt.Errorf("server was not ready after %s", Patience)
	}
}

func (s *Server) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", s.DataDir+"/"+apiserver.KubeconfigFile)
	if err != nil {
		return fmt.Errorf("reading the generated kubeconfig: %w", err)
	}
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	s.Config = config
	if s.Client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	return nil
}

// Namespace creates a namespace with a generated name. It is not deleted: that
// takes longer than most tests, and the server goes away anyway.
func (s *Server) Namespace(tb testing.TB) string {
	tb.Helper()
	namespace, err := s.Client.CoreV1().Namespaces().Create(tb.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatalf("creating a namespace: %v", err)
	}
	return namespace.Name
}

func logger() *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(os.Getenv(EnvLog))); err != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}
