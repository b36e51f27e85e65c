package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"rik.dev/rik/internal/atomicfile"
)

// PeerValidity is the default validity of the certificates that servers present to each other.
const PeerValidity = 30 * 24 * time.Hour

// peerPrefix is the beginning of the common name in a peer's certificate.
const peerPrefix = "rik:server:"

// ErrNotPeer is returned for a certificate that does not belong to a server of the cluster.
var ErrNotPeer = errors.New("the certificate does not belong to a server of the cluster")

// IssuePeer creates a key and a certificate with which a server of the cluster authenticates to
// the other servers, and they to it. Only such certificates are valid both for a client and for a
// server. [Authority.SignCSR] signs no such certificate, so that no user and no node gets one.
func (a *Authority) IssuePeer(server string, hosts []string, validity time.Duration) (certPEM, keyPEM []byte, err error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: peerPrefix + server},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.issue(template, validity)
}

// PeerName returns the server of a verified peer certificate, or ErrNotPeer.
func PeerName(c *x509.Certificate) (string, error) {
	name, ok := strings.CutPrefix(c.Subject.CommonName, peerPrefix)
	if !ok || !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		return "", fmt.Errorf("%w: %q", ErrNotPeer, c.Subject.CommonName)
	}
	return name, nil
}

// PeerConfig configures the certificate of a peer.
type PeerConfig struct {
	// Dir gets the files of the certificate, for libraries that read files. Required.
	Dir string
	// Server is the name of this server. Hosts are its names and addresses. Required.
	Server string
	Hosts  []string
	// Validity is PeerValidity if it is zero.
	Validity time.Duration
	Logger   *slog.Logger
}

// Peer is the certificate of this server for other servers, which renews itself.
type Peer struct {
	// CertFile, KeyFile and CAFile are the files of the certificate and of the authority.
	CertFile, KeyFile, CAFile string

	leaf      *Leaf
	authority *Authority
}

// Peer issues the certificate of a peer, unless its files have one that is still valid. Run renews
// it.
func (a *Authority) Peer(ctx context.Context, c PeerConfig) (*Peer, error) {
	if c.Validity == 0 {
		c.Validity = PeerValidity
	}
	p := &Peer{
		CertFile: filepath.Join(c.Dir, "peer.crt"), KeyFile: filepath.Join(c.Dir, "peer.key"), CAFile: filepath.Join(c.Dir, "peer-ca.crt"),
		authority: a,
	}
	if err := atomicfile.Write(p.CAFile, a.CertificatePEM()); err != nil {
		return nil, err
	}
	var err error
	p.leaf, err = NewLeaf(ctx, LeafConfig{
		Issue: func(context.Context) ([]byte, []byte, error) {
			return a.IssuePeer(c.Server, c.Hosts, c.Validity)
		},
		CertFile: p.CertFile, KeyFile: p.KeyFile,
		Accept: func(leaf *x509.Certificate) error { return p.accept(leaf, c) },
		Logger: c.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("preparing the certificate for other servers: %w", err)
	}
	return p, nil
}

// accept refuses a stored certificate of another authority, another server or other hosts.
func (p *Peer) accept(leaf *x509.Certificate, c PeerConfig) error {
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: p.authority.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return err
	}
	if name, err := PeerName(leaf); err != nil || name != c.Server {
		return errors.Join(err, fmt.Errorf("the server is called %s now", c.Server))
	}
	for _, host := range c.Hosts {
		if err := leaf.VerifyHostname(host); err != nil {
			return err
		}
	}
	return nil
}

// Run renews the certificate until ctx ends.
func (p *Peer) Run(ctx context.Context) error { return p.leaf.Run(ctx) }

// Renew issues another certificate now. The next handshakes use it.
func (p *Peer) Renew(ctx context.Context) error { return p.leaf.Renew(ctx) }

// ServerTLS returns the configuration of a listener that only servers of the cluster may use.
func (p *Peer) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		GetCertificate:   p.leaf.GetCertificate,
		ClientAuth:       tls.RequireAndVerifyClientCert,
		ClientCAs:        p.authority.Pool(),
		VerifyConnection: onlyPeers,
	}
}

// ClientTLS returns the configuration of connections to other servers.
func (p *Peer) ClientTLS() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		RootCAs:              p.authority.Pool(),
		GetClientCertificate: p.leaf.GetClientCertificate,
		VerifyConnection:     onlyPeers,
	}
}

// onlyPeers runs at every handshake, also at one that resumes a session.
func onlyPeers(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return ErrNotPeer
	}
	_, err := PeerName(state.PeerCertificates[0])
	return err
}
