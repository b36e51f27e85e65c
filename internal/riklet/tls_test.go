package riklet

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/riklet/join"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/testkit/output"
)

const (
	secret = "0123456789abcdef0123"
	// timeout is long, for busy machines.
	timeout = time.Minute
)

// joinEnd signs the certificate of every node that has the secret.
type joinEnd struct {
	nodev1.UnimplementedJoinServer
	authority *pki.Authority
}

func (j joinEnd) Join(_ context.Context, in *nodev1.JoinRequest) (*nodev1.JoinResponse, error) {
	token, err := jointoken.Parse(in.GetToken())
	if err != nil || !token.SecretIs(secret) {
		return nil, status.Error(codes.Unauthenticated, "the join token is not valid")
	}
	subject := pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + in.GetNodeName(), Organization: []string{rikv1alpha1.GroupNodes}}
	cert, err := j.authority.SignCSR(in.GetCsrPem(), subject, 24*time.Hour)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &nodev1.JoinResponse{CertificatePem: cert, CaPem: j.authority.CertificatePEM()}, nil
}

// serveTLS serves on a loopback port that the kernel chooses.
func serveTLS(t *testing.T, authority *pki.Authority, auth tls.ClientAuthType, register func(*grpc.Server)) (address string) {
	t.Helper()
	certPEM, keyPEM, err := authority.IssueServer([]string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(slices.Concat(certPEM, authority.CertificatePEM()), keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: authority.Pool(), ClientAuth: auth,
	})))
	register(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().String()
}

// overTLS returns a bench whose cluster is reached over the network.
func overTLS(t *testing.T) (*bench, Config) {
	t.Helper()
	authority, err := pki.LoadOrCreate(filepath.Join(t.TempDir(), "ca"))
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	cfg := b.config()
	cfg.DialScheduler, cfg.DialController = nil, nil
	cfg.SchedulerAddr = serveTLS(t, authority, tls.RequireAndVerifyClientCert, func(s *grpc.Server) {
		schedulerv1.RegisterWorkerServer(s, workerEnd{cluster: b.cluster})
	})
	cfg.ControllerAddr = serveTLS(t, authority, tls.VerifyClientCertIfGiven, func(s *grpc.Server) {
		nodev1.RegisterJoinServer(s, joinEnd{authority: authority})
		nodev1.RegisterNodeServer(s, nodeEnd{cluster: b.cluster})
	})
	cfg.Token = jointoken.Token{CAHash: strings.TrimPrefix(authority.Hash(), "sha256:"), ID: "abcd", Secret: secret}
	return b, cfg
}

// running starts a riklet that ends with the test.
func running(t *testing.T, cfg Config) (r *Riklet, done <-chan error, stop func()) {
	t.Helper()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended, closed := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(closed)
		err := r.Run(ctx)
		ended <- errors.Join(err, r.Close())
	}()
	stop = func() { cancel(); <-closed }
	t.Cleanup(stop)
	return r, ended, stop
}

// eventually polls, because real connections do not work in a bubble.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			t.Fatalf("after %s: not %s", timeout, what)
		case <-ticker.C:
		}
	}
}

func TestJoinAndRunOverTLS(t *testing.T) {
	t.Parallel()
	b, cfg := overTLS(t)
	_, _, stop := running(t, cfg)
	b.cluster.run("a")
	eventually(t, "running", func() bool { return b.cluster.phase("a") == string(rikv1alpha1.InstanceRunning) })
	b.cluster.locked(func() {
		if len(b.cluster.callers) != 2 || b.cluster.callers[0] != "rik:node:n1" || b.cluster.callers[1] != "rik:node:n1" {
			t.Errorf("called by %q, want the node's certificate at both services", b.cluster.callers)
		}
	})
	stop()
	// The node has saved its certificate, so it needs no token any more.
	cfg.Token = jointoken.Token{}
	again, _, _ := running(t, cfg)
	select {
	case <-again.Ready():
	case <-time.After(timeout):
		t.Fatal("the node did not come back without its token")
	}
	if b.host.Starts("a") != 1 {
		t.Errorf("a was started %d times", b.host.Starts("a"))
	}
}

func TestRunEndsWhenTheNodeMayNotJoin(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*Config)
		want   error
	}{
		{"wrong authority", func(c *Config) { c.Token.CAHash = strings.Repeat("0", 64) }, join.ErrNotTrusted},
		{"wrong secret", func(c *Config) { c.Token.Secret = strings.Repeat("0", 20) }, join.ErrTokenRefused},
		{"no token", func(c *Config) { c.Token = jointoken.Token{} }, join.ErrNoToken},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, cfg := overTLS(t)
			tc.change(&cfg)
			_, done, _ := running(t, cfg)
			select {
			case err := <-done:
				if !errors.Is(err, tc.want) {
					t.Errorf("Run() = %v, want %v", err, tc.want)
				}
			case <-time.After(timeout):
				t.Error("Run() did not end")
			}
		})
	}
}

// A node whose certificate is no longer valid continues to run its instances.
func TestInstancesContinueOutsideTheCluster(t *testing.T) {
	t.Parallel()
	b, cfg := overTLS(t)
	_, _, stop := running(t, cfg)
	b.cluster.run("a")
	eventually(t, "running", func() bool { return b.cluster.phase("a") == string(rikv1alpha1.InstanceRunning) })
	stop()
	cfg.NodeName = "n2" // the saved certificate is for another name
	cfg.Token.Secret = strings.Repeat("0", 20)
	said := &output.Buffer{}
	cfg.Logger = slog.New(slog.NewTextHandler(said, nil))
	r, done, _ := running(t, cfg)
	eventually(t, "said why it is outside", func() bool {
		return strings.Contains(said.String(), "not part of a cluster") && strings.Contains(said.String(), join.ErrTokenRefused.Error())
	})
	if got := r.manager.List(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("looks after %v, want a", got)
	}
	select {
	case err := <-done:
		t.Errorf("Run() = %v although an instance runs", err)
	default:
	}
}
