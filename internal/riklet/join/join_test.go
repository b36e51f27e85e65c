package join

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
)

const (
	secret   = "0123456789abcdef0123"
	machine  = "0123456789abcdef0123456789abcdef"
	validity = 30 * 24 * time.Hour
)

// server is the controller's end. It issues certificates of a real authority and stores which
// machine has which name.
type server struct {
	nodev1.UnimplementedJoinServer
	nodev1.UnimplementedNodeServer
	authority *pki.Authority
	listener  *bufconn.Listener

	mu       sync.Mutex
	machines map[string]string
	joins    int
	renewers []string // common names that renewed
}

func start(t *testing.T) *server {
	t.Helper()
	authority, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &server{authority: authority, listener: bufconn.Listen(1 << 16), machines: map[string]string{}}
	certPEM, keyPEM, err := authority.IssueServer([]string{"server.test"}, 365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(append(certPEM, authority.CertificatePEM()...), keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: authority.Pool(), ClientAuth: tls.VerifyClientCertIfGiven,
	})))
	nodev1.RegisterJoinServer(g, s)
	nodev1.RegisterNodeServer(g, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(s.listener)
	}()
	t.Cleanup(func() { g.Stop(); <-done })
	return s
}

func (s *server) Join(_ context.Context, in *nodev1.JoinRequest) (*nodev1.JoinResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joins++
	token, err := jointoken.Parse(in.GetToken())
	if err != nil || !token.SecretIs(secret) {
		return nil, status.Error(codes.Unauthenticated, "token abcd is not known")
	}
	if owner := s.machines[in.GetNodeName()]; owner != "" && owner != in.GetMachineId() {
		return nil, status.Errorf(codes.AlreadyExists, "another machine has joined as node %q: start this machine with another --node-name", in.GetNodeName())
	}
	s.machines[in.GetNodeName()] = in.GetMachineId()
	if in.GetNodeName() == "no_name" {
		return nil, status.Error(codes.InvalidArgument, "node name \"no_name\" is none")
	}
	return s.sign(rikv1alpha1.NodeUserPrefix+in.GetNodeName(), in.GetCsrPem())
}

func (s *server) Renew(ctx context.Context, in *nodev1.RenewRequest) (*nodev1.JoinResponse, error) {
	p, _ := peer.FromContext(ctx)
	chains := p.AuthInfo.(credentials.TLSInfo).State.VerifiedChains
	if len(chains) == 0 {
		return nil, status.Error(codes.Unauthenticated, "no certificate")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := chains[0][0].Subject.CommonName
	s.renewers = append(s.renewers, name)
	return s.sign(name, in.GetCsrPem())
}

func (s *server) sign(name string, csr []byte) (*nodev1.JoinResponse, error) {
	cert, err := s.authority.SignCSR(csr, pkix.Name{CommonName: name, Organization: []string{rikv1alpha1.GroupNodes}}, validity)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &nodev1.JoinResponse{CertificatePem: cert, CaPem: s.authority.CertificatePEM()}, nil
}

func (s *server) joined() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joins
}

func (s *server) config(dir string) Config {
	return Config{
		Server: "server.test:4997", NodeName: "n1", MachineID: machine, InstallationKey: "key", Dir: dir,
		Token: jointoken.Token{CAHash: strings.TrimPrefix(s.authority.Hash(), "sha256:"), ID: "abcd", Secret: secret},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return s.listener.DialContext(ctx)
		})},
	}
}

func open(t *testing.T, cfg Config) *Identity {
	t.Helper()
	i, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestJoinOnce(t *testing.T) {
	t.Parallel()
	s, dir := start(t), t.TempDir()
	first := open(t, s.config(dir))
	if first.Joined() {
		t.Fatal("joined before it asked")
	}
	if err := first.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, File))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kept with mode %v, %v, want 0600", info.Mode(), err)
	}
	// A restart needs neither the token nor the server.
	cfg := s.config(dir)
	cfg.Token = jointoken.Token{}
	second := open(t, cfg)
	if err := second.Ensure(t.Context()); err != nil || !second.Joined() {
		t.Errorf("Ensure() after a restart = %v, joined %t", err, second.Joined())
	}
	if got := s.joined(); got != 1 {
		t.Errorf("the server was asked %d times to join, want once", got)
	}
}

func TestJoinRefusals(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*Config)
		want   error
		says   string
		asked  int // how often the secret was sent
	}{
		{"wrong hash", func(c *Config) { c.Token.CAHash = strings.Repeat("00", 32) }, ErrNotTrusted, "authority", 0},
		{"another host's certificate", func(c *Config) { c.ServerName = "elsewhere.test" }, ErrNotTrusted, "elsewhere.test", 0},
		{"wrong secret", func(c *Config) { c.Token.Secret = "not-the-right-secret" }, ErrTokenRefused, "not known", 1},
		{"impossible name", func(c *Config) { c.NodeName = "no_name" }, ErrRejected, "no_name", 1},
		{"no token", func(c *Config) { c.Token = jointoken.Token{} }, ErrNoToken, "join token", 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			cfg := s.config(t.TempDir())
			tc.change(&cfg)
			i := open(t, cfg)
			err := i.Ensure(t.Context())
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Ensure() = %v, want %v with the text %q", err, tc.want, tc.says)
			}
			if i.Joined() || s.joined() != tc.asked {
				t.Errorf("joined %t, asked %d times, want not joined and %d", i.Joined(), s.joined(), tc.asked)
			}
		})
	}
}

// If two hosts have the same name, the second one is refused.
func TestFault20SecondHostOfOneNameIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t)
	if err := open(t, s.config(t.TempDir())).Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := s.config(t.TempDir())
	cfg.MachineID = "fedcba9876543210fedcba9876543210"
	second := open(t, cfg)
	err := second.Ensure(t.Context())
	if !errors.Is(err, ErrNameTaken) || !strings.Contains(err.Error(), "--node-name") || second.Joined() {
		t.Errorf("Ensure() of a second machine = %v, joined %t, want ErrNameTaken with the next step", err, second.Joined())
	}
	// The first one may join again, for example with a new disk.
	if err := open(t, s.config(t.TempDir())).Ensure(t.Context()); err != nil {
		t.Errorf("Ensure() of the same machine = %v, want nil", err)
	}
}

func TestKeptIdentityIsNotUsed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*Config)
	}{
		{"of another name", func(c *Config) { c.NodeName = "n2" }},
		{"of another cluster", func(c *Config) { c.Token.CAHash = strings.Repeat("00", 32) }},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			cfg := s.config(t.TempDir())
			if err := open(t, cfg).Ensure(t.Context()); err != nil {
				t.Fatal(err)
			}
			tc.change(&cfg)
			if open(t, cfg).Joined() {
				t.Error("an identity that does not fit was used")
			}
		})
	}
}

func TestDamagedIdentityIsReported(t *testing.T) {
	t.Parallel()
	s, dir := start(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, File), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.config(dir)); err == nil || !strings.Contains(err.Error(), File) {
		t.Errorf("Open() = %v, want an error that names the file", err)
	}
}

func TestRenewalWhileRunning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, dir := start(t), t.TempDir()
		i := open(t, s.config(dir))
		if err := i.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		config, err := i.TLS("server.test")
		if err != nil {
			t.Fatal(err)
		}
		shown := func() string {
			pair, err := config.GetClientCertificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			return pair.Leaf.SerialNumber.String()
		}
		first, end := shown(), i.notAfter()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- i.Run(ctx) }()

		time.Sleep(validity / 2)
		synctest.Wait()
		if shown() != first {
			t.Error("renewed before two thirds of its life were over")
		}
		time.Sleep(validity/6 + 24*time.Hour)
		synctest.Wait()
		if shown() == first || !i.notAfter().After(end) {
			t.Error("the next handshake would still show the old certificate")
		}
		if kept := open(t, s.config(dir)); !kept.notAfter().Equal(i.notAfter()) {
			t.Error("the new certificate is not the one that is kept")
		}
		s.mu.Lock()
		if len(s.renewers) != 1 || s.renewers[0] != "rik:node:n1" {
			t.Errorf("renewals by %v, want one by rik:node:n1", s.renewers)
		}
		s.mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil after cancellation", err)
		}
	})
}

func TestJoinWaitsForTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		cfg := s.config(t.TempDir())
		var tries atomic.Int32
		cfg.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if tries.Add(1) < 4 {
				return nil, errors.New("connection refused")
			}
			return s.listener.DialContext(ctx)
		})}
		if err := open(t, cfg).Ensure(t.Context()); err != nil {
			t.Errorf("Ensure() = %v, want it to have tried until the server was there", err)
		}
	})
}

func TestOpenNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := Open(Config{Token: jointoken.Token{ID: "abcd"}})
	for _, want := range []string{"Server", "NodeName", "MachineID", "InstallationKey", "Dir", "join token"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open() = %v, want it to name %s", err, want)
		}
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	tests := []struct{ server, scheduler, controller string }{
		{"https://host:5000", "host:4995", "host:4997"},
		{"https://host/", "host:4995", "host:4997"},
		{"10.0.0.1:5000", "10.0.0.1:4995", "10.0.0.1:4997"},
		{"https://[fd00::1]:5000", "[fd00::1]:4995", "[fd00::1]:4997"},
		{"[fd00::1]", "[fd00::1]:4995", "[fd00::1]:4997"},
		{"http://host:5000", "", ""},
		{"https://", "", ""},
		{"https://host/path", "", ""},
	}
	for _, tc := range tests {
		s, c, err := Addresses(tc.server)
		if s != tc.scheduler || c != tc.controller || (err == nil) != (tc.scheduler != "") {
			t.Errorf("Addresses(%q) = %q, %q, %v, want %q, %q", tc.server, s, c, err, tc.scheduler, tc.controller)
		}
	}
}

// The file contains the key first, so that a reader that uses the first block never confuses an
// authority with the node's certificate.
func TestFileHoldsKeyCertificateAuthority(t *testing.T) {
	t.Parallel()
	s, dir := start(t), t.TempDir()
	if err := open(t, s.config(dir)).Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, File))
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		types = append(types, block.Type)
	}
	if got := strings.Join(types, ", "); got != "PRIVATE KEY, CERTIFICATE, CERTIFICATE" {
		t.Errorf("blocks are %s", got)
	}
}

// A certificate that was issued while the clock was ahead is not valid yet. With a token the node
// joins again. Without one it waits and logs the reason.
func TestIdentityDatedInTheFuture(t *testing.T) {
	t.Parallel()
	var cfg Config
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(48 * time.Hour) // every bubble starts at the same time
		cfg = start(t).config(dir)
		if err := open(t, cfg).Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		if open(t, cfg).Joined() {
			t.Error("an identity that is not valid yet was used although there is a token")
		}
		if !strings.Contains(log.String(), "it was issued while a clock was ahead") {
			t.Errorf("the log is %q", log.String())
		}
		cfg.Token = jointoken.Token{}
		if i := open(t, cfg); !i.Joined() || !i.material().isAhead() {
			t.Error("without a token the identity was not kept")
		}
	})
}

// notAfter is the end of the certificate's life; zero before the node joined.
func (i *Identity) notAfter() time.Time {
	if m := i.material(); m != nil {
		return m.leaf().NotAfter
	}
	return time.Time{}
}
