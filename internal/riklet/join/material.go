package join

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"rik.dev/rik/internal/atomicfile"
)

// material is a key, its certificate and the authorities that the node trusts.
type material struct {
	pair  tls.Certificate
	roots *x509.CertPool
	// authorities are the hashes of the certificates in roots.
	authorities map[string]bool
	text        []byte // the content of the file
}

// newMaterial checks that the parts belong together, so that an unusable answer of the server is
// not saved.
func newMaterial(keyPEM, certPEM, caPEM []byte) (*material, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("reading the node's certificate: %w", err)
	}
	m := &material{pair: pair, roots: x509.NewCertPool(), authorities: map[string]bool{}}
	for rest := caPEM; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("reading the cluster's certificate authority: %w", err)
		}
		m.roots.AddCert(ca)
		m.authorities[hashOf(ca)] = true
	}
	if len(m.authorities) == 0 {
		return nil, errors.New("the cluster's certificate authority is missing")
	}
	_, err = m.leaf().Verify(x509.VerifyOptions{Roots: m.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: m.leaf().NotBefore})
	if err != nil {
		return nil, fmt.Errorf("the node's certificate is not signed by the cluster's certificate authority: %w", err)
	}
	m.text = join(keyPEM, certPEM, caPEM)
	return m, nil
}

func (m *material) leaf() *x509.Certificate { return m.pair.Leaf }

func (m *material) hasAuthority(hash string) bool { return m.authorities[hash] }

// isAhead reports whether the certificate becomes valid only after now.
func (m *material) isAhead() bool { return time.Now().Before(m.leaf().NotBefore) }

// renewal returns the time at which two thirds of the certificate's lifetime are over.
func (m *material) renewal() time.Time {
	c := m.leaf()
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

// save replaces the file atomically, so that key and certificate always match.
func (m *material) save(path string) error {
	if err := atomicfile.Write(path, m.text); err != nil {
		return fmt.Errorf("saving the node's identity: %w", err)
	}
	return nil
}

// load returns nil without an error if the file does not exist.
func load(path string) (*material, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the node's identity: %w", err)
	}
	var key, certificate, authorities []byte
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		encoded := pem.EncodeToMemory(block)
		switch {
		case block.Type != "CERTIFICATE":
			key = encoded
		case certificate == nil:
			certificate = encoded
		default:
			authorities = append(authorities, encoded...)
		}
	}
	m, err := newMaterial(key, certificate, authorities)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged (remove it and join again): %w", path, err)
	}
	return m, nil
}

func join(parts ...[]byte) []byte {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func hashOf(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// Check reads the identity of a node in a file. The returned text says until when its certificate is
// valid, or that the node has not joined.
func Check(path string, now time.Time) (string, error) {
	m, err := load(path)
	if err != nil {
		return "", err
	}
	if m == nil {
		return "the node has not joined a cluster", nil
	}
	until := m.leaf().NotAfter
	if now.After(until) {
		return "", fmt.Errorf("the certificate has expired at %s: the riklet needs a join token at its next start (--token-file)", until.UTC().Format(time.RFC3339))
	}
	return "valid until " + until.UTC().Format(time.RFC3339), nil
}
