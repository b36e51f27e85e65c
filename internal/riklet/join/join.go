// Package join gets and renews the certificate of a node.
//
// A node first joins with a token. It verifies the server by the hash of the certificate authority
// in the token before it sends the token's secret. It then requests a certificate for a new key,
// and saves the key, the certificate and the authority in one file of mode 0600. While the node
// runs, [Identity.Run] renews the certificate after two thirds of its lifetime. Existing
// connections stay open, and the next handshake uses the new certificate.
package join

import (
	"cmp"
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
	"rik.dev/rik/internal/sdnotify"
)

// File is the file of the identity in [Config.Dir].
const File = "identity.pem"

const (
	// callTimeout limits one call of Join or Renew.
	callTimeout = 30 * time.Second
	// firstRetry and maxRetry bound the pause between two attempts to join.
	firstRetry = time.Second
	maxRetry   = 30 * time.Second
	// retryRenewal is the pause after a failed renewal. A third of the certificate's lifetime is
	// left for many attempts.
	retryRenewal = time.Minute
	// maxSleep makes the renewal notice that the wall clock was set forward or that the machine
	// slept. Timers measure neither.
	maxSleep = time.Hour
)

// Errors of joining that are permanent.
var (
	// ErrNotTrusted means that the server does not belong to the cluster of the token.
	ErrNotTrusted = pki.ErrNotTrusted
	// ErrTokenRefused means that the controller does not know the token, or that the token has
	// expired.
	ErrTokenRefused = errors.New("the controller refused the join token")
	// ErrNameTaken means that another machine, or another riklet on this machine, has the node's
	// name.
	ErrNameTaken = errors.New("the node's name is already in use")
	// ErrRejected means that the controller does not admit this node.
	ErrRejected = errors.New("the controller refused this node")
	// ErrNoToken means that the node has neither a usable certificate nor a token to request one.
	ErrNoToken = errors.New("this machine has not joined a cluster")
)

// Config configures the node's identity and the server.
type Config struct {
	// Server is the host:port of the controller's services for nodes. Required.
	Server string
	// Current returns the address of the server that the node uses now, for renewals. nil means
	// Server.
	Current func() string
	// ServerName is the expected name in the server's certificate. If it is empty, it is the host
	// of Server.
	ServerName string
	// Token is required until the node has joined. Afterward it is the zero value.
	Token jointoken.Token
	// NodeName and MachineID identify the node. Required.
	NodeName, MachineID string
	// InstallationKey proves to the cluster that the same riklet joins again. Required.
	InstallationKey string
	// Dir is the directory of the identity. It must exist. Required.
	Dir string
	// Logger logs joining and renewals. nil discards the messages.
	Logger *slog.Logger
	// DialOptions are added to those of every connection, for example a dialer that does not use
	// the network.
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

// Open reads the saved identity, without using the network. It ignores an identity with another
// node name, or of another cluster than the token's.
func Open(cfg Config) (*Identity, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
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

// unusableReason returns why a saved identity cannot be used, or "" if it can.
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

// aheadMessage is logged for a certificate that becomes valid only later. Connections with it are
// refused.
const aheadMessage = "the node's certificate was issued while a clock was ahead, and is not valid yet: restart the node with a join token, or wait until it is valid"

// Joined reports whether the node has a certificate.
func (i *Identity) Joined() bool { return i.material() != nil }

// Authorities returns the sorted hashes of the cluster's certificate authorities. It is empty
// before the node has joined.
func (i *Identity) Authorities() []string {
	if m := i.material(); m != nil {
		return slices.Sorted(maps.Keys(m.authorities))
	}
	return nil
}

// NotAfter returns when the certificate expires. It is zero before the node has joined.
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

// Ensure joins the cluster unless the node has joined already. It retries while the server cannot
// be reached. It returns an error only if a retry is useless: one of this package's errors, or the
// cause of ctx.
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
		sdnotify.Of(ctx).Status(fmt.Sprintf("%v; next attempt in %s", err, pause))
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

// join makes one attempt to join.
func (i *Identity) join(ctx context.Context) error {
	csr, key, err := pki.NewCSR(pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + i.cfg.NodeName})
	if err != nil {
		return err
	}
	pin := &pki.Pin{Hash: i.cfg.Token.CAHash, ServerName: i.cfg.ServerName}
	conn, err := i.dial(pin.Config())
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
		// gRPC turns a refused handshake into a text. The pin has the error.
		if refusal := pin.Refusal(); refusal != nil {
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

// explain converts the answers of the protocol to this package's errors.
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
	return i.dialAt(i.cfg.Server, config)
}

func (i *Identity) dialAt(address string, config *tls.Config) (*grpc.ClientConn, error) {
	// HTTPS_PROXY is for registries. The node connects to the cluster's servers directly.
	options := append([]grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithNoProxy()}, i.cfg.DialOptions...)
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		return nil, fmt.Errorf("dialing %s: %w", address, err)
	}
	return conn, nil
}

// keep saves a new identity before it is used.
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

// TLS returns the configuration of connections to the cluster's servers. Each handshake chooses the
// certificate, so it uses a renewed one at once.
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

// Run renews the certificate until ctx ends. The node must have joined.
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
		// Pause also after a success, so that a server whose certificates must be renewed at once
		// does not cause a busy loop.
		if !sleep(ctx, retryRenewal) {
			return nil
		}
	}
}

// renew makes one attempt to renew, with a new key.
func (i *Identity) renew(ctx context.Context) error {
	csr, key, err := pki.NewCSR(pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + i.cfg.NodeName})
	if err != nil {
		return err
	}
	address, name := i.cfg.Server, i.cfg.ServerName
	if i.cfg.Current != nil && i.cfg.Current() != address {
		address = i.cfg.Current()
		if name, _, err = net.SplitHostPort(address); err != nil {
			return fmt.Errorf("the server's address %q: %w", address, err)
		}
	}
	config, err := i.TLS(name)
	if err != nil {
		return err
	}
	conn, err := i.dialAt(address, config)
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

// Addresses returns the addresses of the scheduler and the controller for nodes, from the address
// that users enter: https://host:5000, with optional scheme and port.
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

// sleep waits for d or until ctx ends, and reports whether d has passed. It varies d by a tenth, so
// that the nodes of a cluster do not all send requests at the same time.
func sleep(ctx context.Context, d time.Duration) bool {
	return pause.For(ctx, d+time.Duration(rand.Int64N(int64(d)/10+1)))
}
