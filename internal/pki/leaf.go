package pki

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/pause"
)

// retryRenewal is the pause after a failed renewal. A third of the lifetime is left at the first
// attempt, so there is time for many attempts.
const retryRenewal = time.Minute

// longestSleep is the maximum time between two checks of a certificate.
const longestSleep = time.Hour

// LeafConfig configures the issuer and the storage of a leaf.
type LeafConfig struct {
	// Issue obtains a certificate and its key. Required. It may use the network and must honor
	// its context.
	Issue func(ctx context.Context) (certPEM, keyPEM []byte, err error)
	// CertFile and KeyFile store the leaf across restarts. Set both, or neither for a leaf in
	// memory only.
	CertFile, KeyFile string
	// Accept may refuse a stored certificate before its renewal is due, for instance because it
	// lacks a host name that was added. Nil accepts every one.
	Accept func(*x509.Certificate) error
	// Logger reports renewals. Nil discards.
	Logger *slog.Logger
}

// Leaf is one certificate with its key. It is replaced after two thirds of its lifetime. Its
// methods are safe for concurrent use.
type Leaf struct {
	cfg LeafConfig

	mu        sync.RWMutex
	pair      *tls.Certificate // never changed in place, only replaced
	certPEM   []byte
	keyPEM    []byte
	listeners []func()
}

// NewLeaf loads the stored leaf if it is valid, not due for renewal and acceptable. Otherwise it
// issues a new one. It blocks for as long as Issue does.
func NewLeaf(ctx context.Context, cfg LeafConfig) (*Leaf, error) {
	if cfg.Issue == nil {
		return nil, errors.New("a leaf certificate needs an issuer")
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("a leaf certificate needs a file for the certificate and a file for the key, or neither")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	l := &Leaf{cfg: cfg}
	if cfg.CertFile != "" {
		loaded, err := l.load()
		if err != nil {
			return nil, err
		}
		if loaded {
			return l, nil
		}
	}
	if err := l.Renew(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// load reports false without an error if a new leaf must be issued.
func (l *Leaf) load() (bool, error) {
	certPEM, err := os.ReadFile(l.cfg.CertFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading a certificate: %w", err)
	}
	keyPEM, err := os.ReadFile(l.cfg.KeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading a key: %w", err)
	}
	if err := RefuseExposed(l.cfg.KeyFile); err != nil {
		l.cfg.Logger.Warn("the stored certificate is outdated; issuing another", "file", l.cfg.CertFile, "err", err)
		return false, nil
	}
	pair, err := parsePair(certPEM, keyPEM)
	if err != nil {
		// The two files are replaced one after the other, so a crash in between leaves a pair
		// that does not match.
		l.cfg.Logger.Warn("the stored certificate cannot be read; issuing another", "file", l.cfg.CertFile, "err", err)
		return false, nil
	}
	if isDue(pair.Leaf, time.Now()) {
		return false, nil
	}
	if l.cfg.Accept != nil {
		if err := l.cfg.Accept(pair.Leaf); err != nil {
			l.cfg.Logger.Info("the stored certificate does not match its settings any more; issuing another", "file", l.cfg.CertFile, "reason", err)
			return false, nil
		}
	}
	l.set(pair, certPEM, keyPEM)
	return true, nil
}

// Renew issues a new certificate now and notifies the listeners.
func (l *Leaf) Renew(ctx context.Context) error {
	certPEM, keyPEM, err := l.cfg.Issue(ctx)
	if err != nil {
		return fmt.Errorf("issuing a certificate: %w", err)
	}
	pair, err := parsePair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("reading the issued certificate: %w", err)
	}
	if l.cfg.CertFile != "" {
		if err := atomicfile.Write(l.cfg.KeyFile, keyPEM); err != nil {
			return err
		}
		if err := atomicfile.Write(l.cfg.CertFile, certPEM); err != nil {
			return err
		}
	}
	l.set(pair, certPEM, keyPEM)
	for _, listener := range l.copyListeners() {
		listener()
	}
	return nil
}

// Run renews the leaf each time two thirds of its lifetime are over, or if it is not valid yet,
// until ctx ends. It logs a failed renewal and tries again.
func (l *Leaf) Run(ctx context.Context) error {
	for {
		if current := l.current().Leaf; !isDue(current, time.Now()) {
			// Wake up regularly, because the clock may be changed.
			if !pause.For(ctx, min(time.Until(renewalTime(current)), longestSleep)) {
				return nil
			}
			continue
		}
		if err := l.Renew(ctx); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // it was told to end
			}
			l.cfg.Logger.Error("renewing a certificate failed", "subject", l.current().Leaf.Subject.CommonName, "notAfter", l.current().Leaf.NotAfter, "err", err)
			if !pause.For(ctx, retryRenewal) {
				return nil
			}
			continue
		}
		if isDue(l.current().Leaf, time.Now()) && !pause.For(ctx, retryRenewal) {
			return nil // the issuer's clock differs, so do not retry in a tight loop
		}
		l.cfg.Logger.Info("certificate renewed", "subject", l.current().Leaf.Subject.CommonName, "notAfter", l.current().Leaf.NotAfter)
	}
}

// GetCertificate implements the function of the same name in a server's tls.Config.
func (l *Leaf) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return l.current(), nil
}

// GetClientCertificate implements the function of the same name in a client's tls.Config.
func (l *Leaf) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return l.current(), nil
}

// PEM returns the current certificate and key; the caller must not change them.
func (l *Leaf) PEM() (certPEM, keyPEM []byte) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.certPEM, l.keyPEM
}

// Notify calls f after every later renewal, one call at a time. f must not block, and must not
// renew.
func (l *Leaf) Notify(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners = append(l.listeners, f)
}

func (l *Leaf) copyListeners() []func() {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return append([]func(){}, l.listeners...)
}

func (l *Leaf) current() *tls.Certificate {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.pair
}

func (l *Leaf) set(pair *tls.Certificate, certPEM, keyPEM []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pair, l.certPEM, l.keyPEM = pair, certPEM, keyPEM
}

// parsePair uses tls.X509KeyPair to check that certificate and key match. It also sets Leaf.
func parsePair(certPEM, keyPEM []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	return &pair, nil
}

// isDue reports whether to renew a certificate: two thirds of its lifetime are over, or it is
// not valid yet. The latter happens if it was issued while the clock was ahead; peers do not
// accept it.
func isDue(c *x509.Certificate, now time.Time) bool {
	return now.Before(c.NotBefore) || !now.Before(renewalTime(c))
}

func renewalTime(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}
