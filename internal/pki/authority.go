package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"rik.dev/rik/internal/atomicfile"
)

const (
	// CertificateFile is the authority's certificate in its directory.
	CertificateFile = "ca.crt"
	// KeyFile is the authority's private key in its directory, mode 0600.
	KeyFile = "ca.key"

	// authorityLifetime is longer than the lifetime of a cluster's first machine, because with a
	// new authority every node must join again.
	authorityLifetime = 10 * 365 * 24 * time.Hour

	// Backdate makes a new certificate valid on peers whose clock is behind.
	Backdate = 5 * time.Minute

	commonName = "rik cluster authority"
)

// The errors of [LoadOrCreate] for a directory without one complete authority. None of them is
// repaired automatically, because a new authority would lock out every client and node that
// trusts the old one.
var (
	// ErrIncomplete reports that only one of the two files exists.
	ErrIncomplete = errors.New("certificate authority is incomplete")
	// ErrMissing reports that neither of the two files exists although they should; see [Load].
	ErrMissing = errors.New("certificate authority is missing")
	// ErrForeign reports that the files are not an authority, or do not belong together.
	ErrForeign = errors.New("not a certificate authority of this cluster")
	// ErrExpired reports that the authority has expired, or that the clock is wrong.
	ErrExpired = errors.New("certificate authority has expired")
	// ErrExposed reports that other users can read or change a private key.
	ErrExposed = errors.New("private key is accessible to other users")
)

// Authority signs the cluster's certificates. It is safe for concurrent use.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	pem         []byte
	created     bool // whether LoadOrCreate created it
}

// LoadOrCreate reads the authority in dir, or creates one if neither of its files exists. It
// creates the directory with mode 0700. The caller must hold a lock that prevents another
// process from creating one at the same time.
func LoadOrCreate(dir string) (*Authority, error) { return load(dir, true) }

// Load is LoadOrCreate for a cluster that exists. It returns ErrMissing instead of creating an
// authority that no client trusts.
func Load(dir string) (*Authority, error) { return load(dir, false) }

func load(dir string, mayCreate bool) (*Authority, error) {
	certPath, keyPath := filepath.Join(dir, CertificateFile), filepath.Join(dir, KeyFile)
	certPEM, certErr := os.ReadFile(certPath)
	keyPEM, keyErr := os.ReadFile(keyPath)
	certGone, keyGone := errors.Is(certErr, fs.ErrNotExist), errors.Is(keyErr, fs.ErrNotExist)
	switch {
	case certGone && keyGone && mayCreate:
		return create(dir)
	case certGone && keyGone:
		return nil, fmt.Errorf("%w: %s and %s: restore them from a backup of the data directory", ErrMissing, certPath, keyPath)
	case certGone:
		return nil, fmt.Errorf("%w: %s exists but %s is missing: restore it from a backup of the data directory", ErrIncomplete, keyPath, certPath)
	case keyGone:
		return nil, fmt.Errorf("%w: %s exists but %s is missing: restore it from a backup of the data directory", ErrIncomplete, certPath, keyPath)
	case certErr != nil:
		return nil, fmt.Errorf("reading the authority's certificate: %w", certErr)
	case keyErr != nil:
		return nil, fmt.Errorf("reading the authority's key: %w", keyErr)
	}
	if err := RefuseExposed(keyPath); err != nil {
		return nil, err
	}
	if _, err := PrivateDir(dir); err != nil {
		return nil, err
	}
	a, err := parseAuthority(certPEM, keyPEM)
	if err != nil {
		if errors.Is(err, ErrForeign) {
			err = fmt.Errorf("%w: restore both files from a backup of the data directory", err)
		}
		return nil, fmt.Errorf("%s and %s: %w", certPath, keyPath, err)
	}
	return a, nil
}

// Discard removes the files of an authority that LoadOrCreate created in dir, if the start is
// refused later. It keeps an authority that was loaded, or that has been replaced since.
func (a *Authority) Discard(dir string) error {
	path := filepath.Join(dir, CertificateFile)
	if have, err := os.ReadFile(path); !a.created || err != nil || !bytes.Equal(have, a.pem) {
		return nil //nolint:nilerr // it is not ours any more
	}
	if err := errors.Join(os.Remove(path), os.Remove(filepath.Join(dir, KeyFile))); err != nil {
		return fmt.Errorf("removing a new certificate authority: %w", err)
	}
	return nil
}

// ExpiresSoon is how long before the expiry of an authority Warning reports it. Replacing an
// authority requires work on every node.
const ExpiresSoon = 180 * 24 * time.Hour

// Warning describes a problem with the authority's validity period. Without a problem it is
// empty.
func (a *Authority) Warning(now time.Time) string {
	from, to := a.certificate.NotBefore, a.certificate.NotAfter
	switch {
	case now.Before(from):
		return fmt.Sprintf("certificate authority is valid from %s, and this machine's clock shows %s: every TLS connection fails until then; set the clock if it is wrong", from.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case now.Add(ExpiresSoon).After(to):
		return fmt.Sprintf("certificate authority expires on %s: %s", to.Format(time.RFC3339), replaceAuthority)
	}
	return ""
}

const replaceAuthority = "to replace it, stop the server, move " + CertificateFile + " and " + KeyFile + " away, and start it once with --accept-keys. Every node then joins again with a token, and clients need the new " + adminFiles

const adminFiles = "admin.kubeconfig or config.yaml"

// parseAuthority checks that both files belong together and can sign.
func parseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	certificate, err := ParseCertificate(certPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if !certificate.IsCA || certificate.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, fmt.Errorf("%w: the certificate of %q is not a CA certificate", ErrForeign, certificate.Subject)
	}
	if !samePublicKey(certificate.PublicKey, key.Public()) {
		return nil, fmt.Errorf("%w: the key does not belong to the certificate", ErrForeign)
	}
	if now := time.Now(); now.After(certificate.NotAfter) {
		return nil, fmt.Errorf("%w: on %s, and this machine's clock shows %s. If the clock is wrong, set it. Otherwise, %s",
			ErrExpired, certificate.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339), replaceAuthority)
	}
	return newAuthority(certificate, key), nil
}

func newAuthority(certificate *x509.Certificate, key crypto.Signer) *Authority {
	return &Authority{certificate: certificate, key: key, pem: encodeCertificate(certificate.Raw)}
}

// create creates a new authority. It writes the key before the certificate, so that a crash in
// between leaves the state that ErrIncomplete reports, and no key is lost.
func create(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the authority's directory: %w", err)
	}
	if _, err := PrivateDir(dir); err != nil {
		return nil, err
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             now.Add(-Backdate),
		NotAfter:              now.Add(authorityLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		// The authority signs leaves only, so a stolen leaf cannot sign.
		MaxPathLenZero: true,
	}
	if template.SerialNumber, err = newSerial(); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of the authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the new certificate of the authority: %w", err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(filepath.Join(dir, KeyFile), keyPEM); err != nil {
		return nil, err
	}
	if err := atomicfile.Write(filepath.Join(dir, CertificateFile), encodeCertificate(der)); err != nil {
		return nil, err
	}
	a := newAuthority(certificate, key)
	a.created = true
	return a, nil
}

// CertificatePEM returns the certificate that clients and nodes trust. The caller owns the
// result.
func (a *Authority) CertificatePEM() []byte { return append([]byte(nil), a.pem...) }

// Pool returns a pool with only this authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// Hash returns "sha256:<hex of the DER's digest>", which identifies the authority. A join token
// contains it, so that a node can recognize the server before it trusts it.
func (a *Authority) Hash() string { return hashDER(a.certificate.Raw) }

func hashDER(der []byte) string {
	sum := sha256.Sum256(der)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ParseCertificate parses the first certificate of a PEM text.
func ParseCertificate(certPEM []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certPEM)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no PEM certificate found")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parsing the certificate: %w", err)
	}
	return certificate, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating a key: %w", err)
	}
	return key, nil
}

// newSerial returns 127 random bits. RFC 5280 requires a positive number with at most 20 octets.
// A random number needs no database of the issued ones.
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generating a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func parseKey(keyPEM []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(keyPEM)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("no PEM private key found")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parsing the private key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	return signer, nil
}

func samePublicKey(a, b crypto.PublicKey) bool {
	key, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(b)
}
