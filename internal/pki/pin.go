package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
)

// ErrNotTrusted means that a server does not belong to the cluster of a join token.
var ErrNotTrusted = errors.New("the server did not prove that it belongs to the cluster of the join token")

// Pin trusts exactly the certificate authority with one hash. The server must send the authority's
// certificate, because the client knows only the hash.
type Pin struct {
	// Hash is the SHA-256 of the authority's certificate in hexadecimal. ServerName is the expected name
	// in the certificate of the server.
	Hash, ServerName string

	mu      sync.Mutex
	refused error
}

// Config returns the configuration of a client. It skips only the verification against the machine's root certificates. VerifyConnection runs
// at every handshake and is stricter.
func (p *Pin) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         p.ServerName,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection compares the pinned authority
		VerifyConnection: func(state tls.ConnectionState) error {
			err := p.verify(state.PeerCertificates)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.refused = err
			return err
		},
	}
}

// Refusal returns why the last handshake was refused.
func (p *Pin) Refusal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

func (p *Pin) verify(presented []*x509.Certificate) error {
	roots, others := x509.NewCertPool(), x509.NewCertPool()
	found := false
	for _, c := range presented {
		if c.IsCA && hashDER(c.Raw) == "sha256:"+p.Hash {
			roots.AddCert(c)
			found = true
			continue
		}
		others.AddCert(c)
	}
	if !found {
		return fmt.Errorf("%w: it does not present the certificate authority that the token names; check that the address is that of the token's cluster, and that no proxy intercepts the connection", ErrNotTrusted)
	}
	_, err := presented[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: others, DNSName: p.ServerName,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotTrusted, err)
	}
	return nil
}
