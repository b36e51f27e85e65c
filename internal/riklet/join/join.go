// Package join gets and keeps the certificate that a node shows to its cluster.
//
// A node first joins with a token: it recognizes the server by the authority's
// hash in the token before it says the secret, sends a request for a fresh key,
// and keeps key, certificate and authority in one file of mode 0600. While it
// runs, [Identity.Run] renews the certificate when two thirds of its life are
// over; connections that exist are not touched, the next handshake shows the
// new one.
package join

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
)

// File keeps the identity in [Config.Dir].
const File = "identity.pem"

const (
	// callTimeout bounds one Join or Renew.
	callTimeout = 30 * time.Second
	// firstRetry and maxRetry bound the pause between two tries to join.
	firstRetry = time.Second
	maxRetry   = 30 * time.Second
	// retryRenewal is the pause after a renewal that went wrong: a third of the
	// certificate's life is left for many tries.
	retryRenewal = time.Minute
	// maxSleep makes the renewal notice a wall clock that was set forward or a
	// machine that slept: timers count neither.
	maxSleep = time.Hour
)

// Errors of joining that do not pass by waiting.
var (
	// ErrNotTrusted says that the server is not of the cluster that the token is
	// for.
	ErrNotTrusted = errors.New("the server did not prove that it belongs to the cluster of the join token")
	// ErrTokenRefused says that the controller does not know the token, or not
	// any more.
	ErrTokenRefused = errors.New("the controller refused the join token")
	// ErrNameTaken says that another machine, or another riklet on this one, has the
	// node's name.
	ErrNameTaken = errors.New("the node's name is already in use")
	// ErrRejected says that the controller will not have a node like this.
	ErrRejected = errors.New("the controller refused this node")
	// ErrNoToken says that the node has no usable certificate and nothing to ask
	// for one with.
	ErrNoToken = errors.New("this machine has not joined a cluster")
)

// Config says who the node is and whom to ask.
type Config struct {
	// Server is host:port of the controller's services for nodes. Required.
	Server string
	// ServerName is looked for in the server's certificate. Server's host when
	// empty.
	ServerName string
	// Token is needed until the node has joined; the zero value afterward.
	Token jointoken.Token
	// NodeName and MachineID are the node's. Required.
	NodeName, MachineID string
	// InstallationKey proves to the cluster that it is this riklet which joins again.
	// Required.
	InstallationKey string
	// Dir keeps the identity; it must exist. Required.
	Dir string
	// Logger reports joining and renewals. Nil discards.
	Logger *slog.Logger
	// DialOptions are added to those of every connection, for instance a dialer
	// that does not use the network.
	DialOptions []grpc.DialOption
}

func (c *Config) validate() error {
	var problems []error
	for name, value := range map[string]string{"Server": c.Server, "NodeName": c.NodeName, "MachineID": c.MachineID, "InstallationKey": c.InstallationKey, "Dir": c.Dir} {
		if value == "" {
			problems = append(problems, fmt.Errorf("%s is required", name))
		}
	}
	if c.Server != "" {
		host, _, err := net.SplitHostPort(c.Server)
		if err != nil {
			problems = append(problems, fmt.Errorf("the server's address %q: %w", c.Server, err))
		} else if c.ServerName == "" {
			c.ServerName = host
		}
	}
	if c.Token != (jointoken.Token{}) {
		if err := c.Token.Validate(); err != nil {
			problems = append(problems, fmt.Errorf("the join token: %w", err))
		}
	}
	return errors.Join(problems...)
}

// Identity is the node's certificate. Its methods are safe for concurrent use.
type Identity struct {
	cfg Config

	mu      sync.RWMutex
	current *material // nil until joined; never changed in place
}

// Open reads what is kept, without using the network. What is kept is ignored
// when it is of another node name, or of another cluster than the token's.
func Open(cfg Config) (*Identity, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	i := &Identity{cfg: cfg}
	kept, err := load(i.path())
	if err != nil {
		return nil, err
	}
	if kept == nil {
		return i, nil
	}
	if reason := i.unusableReason(kept); reason != "" {
		cfg.Logger.Warn("the saved node certificate is not used", "file", i.path(), "reason", reason)
		return i, nil
	}
	i.current = kept
	return i, nil
}

func (i *Identity) path() string { return filepath.Join(i.cfg.Dir, File) }

// unusableReason says why a kept identity is of no use; empty if it is.
func (i *Identity) unusableReason(m *material) string {
	if want := rikv1alpha1.NodeUserPrefix + i.cfg.NodeName; m.leaf().Subject.CommonName != want {
		return fmt.Sprintf("it belongs to %q and the node is %q", m.leaf().Subject.CommonName, want)
	}
	if i.cfg.Token.CAHash != "" && !m.hasAuthority(i.cfg.Token.CAHash) {
		return "the join token belongs to another cluster"
	}
	if !time.Now().Before(m.leaf().NotAfter) {
		return "it expired on " + m.leaf().NotAfter.Format(time.RFC3339)
	}
	if i.cfg.Token.Secret != "" && m.isAhead() {
		return "it is not valid before " + m.leaf().NotBefore.Format(time.RFC3339) + ": it was issued while a clock was ahead; the node joins again with its token"
	}
	return ""
}

// aheadMessage is for a certificate whose life begins later than now. Connections with it are
// refused.
const aheadMessage = "the node's certificate was issued while a clock was ahead, and is not valid yet: restart the node with a join token, or wait until it is valid"

// Joined says whether the node has a certificate.
func (i *Identity) Joined() bool { return i.material() != nil }

// Authorities are the hashes of the cluster's authorities in order; empty
// before the node joined.
func (i *Identity) Authorities() []string {
	if m := i.material(); m != nil {
		return slices.Sorted(maps.Keys(m.authorities))
	}
	return nil
}

// NotAfter is the end of the certificate's life; zero before the node joined.
func (i *Identity) NotAfter() time.Time {
	if m := i.material(); m != nil {
		return m.leaf().NotAfter
	}
	return time.Time{}
}

func (i *Identity) material() *material {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.current
}

// Ensure joins unless the node has joined. It tries again while the server
// cannot be reached, and returns early only when waiting is of no use: with
// one of this package's errors, or when ctx ends.
func (i *Identity) Ensure(ctx context.Context) error {
	if i.Joined() {
		return nil
	}
	if i.cfg.Token == (jointoken.Token{}) {
		return fmt.Errorf("%w, or its certificate has expired: start it with a join token", ErrNoToken)
	}
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		err := i.join(ctx)
		if err == nil || final(err) {
			return err
		}
		i.cfg.Logger.Warn("joining the cluster failed; trying again", "server", i.cfg.Server, "retryIn", pause, "err", err)
		if !sleep(ctx, pause) {
			return fmt.Errorf("joining %s: %w", i.cfg.Server, context.Cause(ctx))
		}
	}
}

func final(err error) bool {
	for _, e := range []error{ErrNotTrusted, ErrTokenRefused, ErrNameTaken, ErrRejected} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// join asks once.
func (i *Identity) join(ctx context.Context) error {
	csr, key, err := pki.NewCSR(pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + i.cfg.NodeName})
	if err != nil {
		return err
	}
	pin := &pin{hash: i.cfg.Token.CAHash, serverName: i.cfg.ServerName}
	conn, err := i.dial(pin.config())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := nodev1.NewJoinClient(conn).Join(ctx, &nodev1.JoinRequest{
		Token: i.cfg.Token.Text(), NodeName: i.cfg.NodeName, MachineId: i.cfg.MachineID, InstallationKey: i.cfg.InstallationKey, CsrPem: csr,
	})
	if err != nil {
		// gRPC turns a refused handshake into text; the pin kept the error.
		if refusal := pin.refusal(); refusal != nil {
			return fmt.Errorf("joining %s: %w", i.cfg.Server, refusal)
		}
		return i.explain(err)
	}
	m, err := newMaterial(key, answer.GetCertificatePem(), answer.GetCaPem())
	if err != nil {
		return fmt.Errorf("joining %s: %w", i.cfg.Server, err)
	}
	if !m.hasAuthority(i.cfg.Token.CAHash) {
		return fmt.Errorf("joining %s: %w: it answered with another certificate authority", i.cfg.Server, ErrNotTrusted)
	}
	if err := i.keep(m); err != nil {
		return err
	}
	i.cfg.Logger.Info("joined the cluster", "server", i.cfg.Server, "node", i.cfg.NodeName, "notAfter", m.leaf().NotAfter)
	return nil
}

// explain turns the answers that the protocol names into this package's errors.
func (i *Identity) explain(err error) error {
	said := status.Convert(err).Message()
	switch status.Code(err) {
	case codes.Unauthenticated:
		return fmt.Errorf("joining %s: %w: %s", i.cfg.Server, ErrTokenRefused, said)
	case codes.AlreadyExists:
		return fmt.Errorf("joining %s: %w: %s", i.cfg.Server, ErrNameTaken, said)
	case codes.InvalidArgument, codes.PermissionDenied:
		return fmt.Errorf("joining %s: %w: %s", i.cfg.Server, ErrRejected, said)
	default:
		return fmt.Errorf("joining %s: %w", i.cfg.Server, err)
	}
}

func (i *Identity) dial(config *tls.Config) (*grpc.ClientConn, error) {
	// HTTPS_PROXY is for registries: a server of the cluster is reached directly.
	options := append([]grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithNoProxy()}, i.cfg.DialOptions...)
	conn, err := grpc.NewClient("passthrough:///"+i.cfg.Server, options...)
	if err != nil {
		return nil, fmt.Errorf("dialing %s: %w", i.cfg.Server, err)
	}
	return conn, nil
}

// keep makes a new identity durable before it is used.
func (i *Identity) keep(m *material) error {
	if want := rikv1alpha1.NodeUserPrefix + i.cfg.NodeName; m.leaf().Subject.CommonName != want {
		return fmt.Errorf("the server issued a certificate for %q instead of %q", m.leaf().Subject.CommonName, want)
	}
	if err := m.save(i.path()); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.current = m
	return nil
}

// TLS is for a connection to one of the cluster's servers. The certificate is
// chosen at each handshake, so a renewed one is used from then on.
func (i *Identity) TLS(serverName string) (*tls.Config, error) {
	m := i.material()
	if m == nil {
		return nil, ErrNoToken
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: serverName,
		RootCAs:    m.roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &i.material().pair, nil
		},
	}, nil
}

// Run renews the certificate until ctx ends. It needs a node that has joined.
func (i *Identity) Run(ctx context.Context) error {
	for {
		m := i.material()
		if m == nil {
			return ErrNoToken
		}
		if wait := time.Until(m.renewal()); wait > 0 && !m.isAhead() {
			if !sleep(ctx, min(wait, maxSleep)) {
				return nil
			}
			continue
		}
		if err := i.renew(ctx); err != nil && ctx.Err() == nil {
			i.cfg.Logger.Error("the node's certificate was not renewed", "server", i.cfg.Server, "notAfter", m.leaf().NotAfter, "err", err)
			if m.isAhead() {
				i.cfg.Logger.Warn(aheadMessage, "notBefore", m.leaf().NotBefore)
			}
		}
		// The pause also follows a success: a server that gives certificates
		// which are due at once must not be asked in a loop.
		if !sleep(ctx, retryRenewal) {
			return nil
		}
	}
}

// renew asks once, with a fresh key.
func (i *Identity) renew(ctx context.Context) error {
	csr, key, err := pki.NewCSR(pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + i.cfg.NodeName})
	if err != nil {
		return err
	}
	config, err := i.TLS(i.cfg.ServerName)
	if err != nil {
		return err
	}
	conn, err := i.dial(config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := nodev1.NewNodeClient(conn).Renew(ctx, &nodev1.RenewRequest{CsrPem: csr})
	if err != nil {
		return fmt.Errorf("requesting a certificate from %s: %w", i.cfg.Server, err)
	}
	m, err := newMaterial(key, answer.GetCertificatePem(), answer.GetCaPem())
	if err != nil {
		return err
	}
	if err := i.keep(m); err != nil {
		return err
	}
	i.cfg.Logger.Info("the node's certificate was renewed", "notAfter", m.leaf().NotAfter)
	return nil
}

// Addresses derives where the scheduler and the controller await nodes from
// the address that people know: https://host:5000, with scheme and port
// optional.
func Addresses(server string) (scheduler, controller string, err error) {
	rest, ok := strings.CutPrefix(server, "https://")
	if !ok && strings.Contains(server, "://") {
		return "", "", fmt.Errorf("the server %q: only https is supported", server)
	}
	rest = strings.TrimSuffix(rest, "/")
	host := rest
	if h, _, err := net.SplitHostPort(rest); err == nil {
		host = h
	} else {
		host = strings.Trim(host, "[]")
	}
	if host == "" || strings.ContainsAny(host, "/ @") {
		return "", "", fmt.Errorf("the server %q must have the form https://HOST or https://HOST:PORT", server)
	}
	join := func(port int) string { return net.JoinHostPort(host, fmt.Sprint(port)) }
	return join(rikv1alpha1.PortWorkers), join(rikv1alpha1.PortNodes), nil
}

// sleep reports whether the time passed, rather than ctx ended. It varies the
// time by a tenth, so that a cluster's nodes do not all ask at once.
func sleep(ctx context.Context, d time.Duration) bool {
	return pause.For(ctx, d+time.Duration(rand.Int64N(int64(d)/10+1)))
}
