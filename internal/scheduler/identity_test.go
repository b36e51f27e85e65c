package scheduler

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/rpc/legacy/common"
	"rik.dev/rik/internal/rpc/legacy/worker"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
)

// secured is a scheduler on loopback with mutual TLS.
type secured struct {
	t                   *testing.T
	ca                  *pki.Authority
	controllers, worker string
	legacyWorker        string
	// deleted lists the Nodes that the controller reports as deleted. older makes the riklets act
	// like a version that does not wait for confirmations.
	deleted []string
	older   bool
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listening: %v", err)
	}
	return l
}

func startSecured(t *testing.T) *secured {
	t.Helper()
	ca, err := pki.LoadOrCreate(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatalf("making an authority: %v", err)
	}
	s := &secured{t: t, ca: ca}
	cert, key, err := ca.IssueServer([]string{"127.0.0.1"}, time.Hour)
	config := &tls.Config{
		Certificates: []tls.Certificate{s.pair(cert, key, err)},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(), MinVersion: tls.VersionTLS13,
	}
	controllers, workers, old := listen(t), listen(t), listen(t)
	s.controllers, s.worker, s.legacyWorker = controllers.Addr().String(), workers.Addr().String(), old.Addr().String()
	scheduler, err := New(Config{
		Controllers: []Endpoint{{Listener: controllers, TLS: config}}, Workers: []Endpoint{{Listener: workers, TLS: config}},
		LegacyWorker: old, Registry: prometheus.NewPedanticRegistry(),
	})
	if err != nil {
		t.Fatalf("New() = %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- scheduler.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return s
}

func (s *secured) pair(cert, key []byte, err error) tls.Certificate {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("issuing: %v", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		s.t.Fatalf("reading a certificate: %v", err)
	}
	return pair
}

// dial connects with a certificate of the subject, or without a certificate if it is nil.
func (s *secured) dial(address string, subject *pkix.Name) *grpc.ClientConn {
	s.t.Helper()
	config := &tls.Config{RootCAs: s.ca.Pool(), MinVersion: tls.VersionTLS13}
	if subject != nil {
		cert, key, err := s.ca.IssueClient(*subject, time.Hour)
		config.Certificates = []tls.Certificate{s.pair(cert, key, err)}
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		s.t.Fatalf("dialing: %v", err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *secured) sync(subject *pkix.Name) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	stream, err := schedulerv1.NewSchedulerClient(s.dial(s.controllers, subject)).Sync(ctx)
	if err != nil {
		return err
	}
	// The server may have refused already. Recv returns the reason.
	_ = stream.Send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Hello{Hello: &schedulerv1.Hello{Term: 1}}})
	m, err := stream.Recv()
	if err == nil && m.GetWelcome() == nil {
		s.t.Errorf("first message = %v, want Welcome", m)
	}
	return err
}

func (s *secured) connect(subject *pkix.Name, name string) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	stream, err := schedulerv1.NewWorkerClient(s.dial(s.worker, subject)).Connect(ctx)
	if err != nil {
		return err
	}
	_ = stream.Send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Register{Register: register(s.t, name)}})
	m, err := stream.Recv()
	if err == nil && m.GetAdmitted() == nil {
		s.t.Errorf("first order = %v, want Admitted", m)
	}
	return err
}

func TestIdentities(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	nodeA := &pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + "a", Organization: []string{rikv1alpha1.GroupNodes}}
	controller := &pkix.Name{CommonName: rikv1alpha1.UserController}
	tests := map[string]struct {
		call func() error
		want codes.Code
	}{
		"controller":                {func() error { return s.sync(controller) }, codes.OK},
		"node as controller":        {func() error { return s.sync(nodeA) }, codes.PermissionDenied},
		"administrator":             {func() error { return s.sync(&pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}) }, codes.PermissionDenied},
		"no user as controller":     {func() error { return s.sync(nil) }, codes.Unavailable},
		"node":                      {func() error { return s.connect(nodeA, "a") }, codes.OK},
		"node under another name":   {func() error { return s.connect(nodeA, "b") }, codes.PermissionDenied},
		"controller as node":        {func() error { return s.connect(controller, "a") }, codes.PermissionDenied},
		"name without its group":    {func() error { return s.connect(&pkix.Name{CommonName: nodeA.CommonName}, "a") }, codes.PermissionDenied},
		"no user as node":           {func() error { return s.connect(nil, "a") }, codes.Unavailable},
		"explanation for a node":    {func() error { return s.explain(nodeA) }, codes.PermissionDenied},
		"explanation before synced": {func() error { return s.explain(controller) }, codes.Unavailable},
		"old worker":                {s.legacy, codes.FailedPrecondition},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := tc.call(); status.Code(err) != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func (s *secured) explain(subject *pkix.Name) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	_, err := schedulerv1.NewSchedulerClient(s.dial(s.controllers, subject)).Explain(ctx, &schedulerv1.ExplainRequest{Uid: "x"})
	return err
}

// legacy sends the published service a request that it refuses with a specific code. The answer
// proves that the service is reachable.
func (s *secured) legacy() error {
	conn, err := grpc.NewClient("passthrough:///"+s.legacyWorker, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatalf("dialing: %v", err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	stream, err := worker.NewWorkerClient(conn).Register(ctx, &common.WorkerRegistration{})
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	real, memory := listen(t), bufconn.Listen(1)
	t.Cleanup(func() { _ = real.Close() })
	anywhere := &fakeListener{addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4995}}
	mutual := &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert}
	tests := map[string]struct {
		config Config
		want   string
	}{
		"nothing":            {Config{}, ""},
		"mutual TLS":         {Config{Workers: []Endpoint{{Listener: real, TLS: mutual}}}, ""},
		"in process":         {Config{Workers: []Endpoint{{Listener: memory, Trusted: true}}}, ""},
		"no listener":        {Config{Controllers: []Endpoint{{TLS: mutual}}}, "controllers[0]: listener is missing"},
		"no TLS":             {Config{Workers: []Endpoint{{Listener: real}}}, "workers[0]: TLS is missing"},
		"one-sided TLS":      {Config{Workers: []Endpoint{{Listener: real, TLS: &tls.Config{}}}}, "client certificates"},
		"trusted port":       {Config{Workers: []Endpoint{{Listener: real, Trusted: true}}}, "inside the process"},
		"trusted with TLS":   {Config{Workers: []Endpoint{{Listener: memory, Trusted: true, TLS: mutual}}}, "must not be set together"},
		"legacy on the net":  {Config{LegacyWorker: anywhere}, "not a loopback"},
		"legacy on loopback": {Config{LegacyWorker: real}, ""},
		"timeout too short":  {Config{HeartbeatInterval: time.Second, NodeTimeout: time.Second}, "longer than"},
		"short timeout":      {Config{NodeTimeout: time.Second}, ""},
		"negative":           {Config{HeartbeatInterval: -1}, "negative"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := New(tc.config)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("New() = %v, want %q", err, tc.want)
			}
		})
	}
}

// fakeListener is a listener that has an address and does not listen.
type fakeListener struct {
	net.Listener
	addr net.Addr
}

func (f *fakeListener) Addr() net.Addr { return f.addr }

func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	if _, err := New(Config{Registry: registry}); err != nil {
		t.Fatalf("New() = %v", err)
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 9 {
		t.Errorf("Gather() = %d families, %v, want 9", len(families), err)
	}
	if _, err := New(Config{Registry: registry}); err == nil {
		t.Error("a second scheduler on one registry was taken")
	}
}
