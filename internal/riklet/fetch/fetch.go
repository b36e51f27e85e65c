// Package fetch downloads files whose URLs tenants choose. It connects only with https, and only
// to public addresses and those that the administrator allows. It checks the address of each
// connection, so neither a redirect nor a changed DNS name leads elsewhere. Downloads are
// limited in bytes and time, verified, and never held in memory. A connection that breaks off is
// resumed. The caller decides whether to start again from the beginning.
package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"time"

	"rik.dev/rik/internal/excerpt"
)

// Config configures where a Fetcher may connect to, and its limits.
type Config struct {
	// AllowHTTP accepts URLs without TLS.
	AllowHTTP bool
	// AllowNetworks lists networks that are allowed although they are not public.
	AllowNetworks []netip.Prefix
	// AllowProxy uses the proxy of the environment. The proxy resolves names itself, so only the
	// proxy's own address and addresses in URLs are checked.
	AllowProxy bool
	// Bytes is the maximum size of a file, Time the maximum time of a download, and Stall the
	// maximum time without data. All are required.
	Bytes       int64
	Time, Stall time.Duration
	// ReserveBytes must stay free on the file system of the file.
	ReserveBytes int64
	// RootCAs verify the certificates of servers; nil means those of the system.
	RootCAs *x509.CertPool
}

// MaxRedirects is the maximum number of redirects.
const MaxRedirects = 5

// Fetcher downloads files. It is safe for concurrent use.
type Fetcher struct {
	cfg    Config
	client *http.Client
	pause  time.Duration // before a connection is resumed for the first time
}

// New returns a Fetcher.
func New(cfg Config) *Fetcher {
	f := &Fetcher{cfg: cfg, pause: resumePause}
	dialer := &net.Dialer{Timeout: cfg.Stall, ControlContext: f.control}
	transport := &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.RootCAs},
		MaxResponseHeaderBytes: 64 << 10,
		// Get the file unchanged, even if it is compressed.
		DisableCompression: true,
		// Downloads are rare, so no connection is kept.
		DisableKeepAlives: true,
		ForceAttemptHTTP2: true,
	}
	if cfg.AllowProxy {
		transport.Proxy = http.ProxyFromEnvironment
	}
	f.client = &http.Client{Transport: transport, CheckRedirect: f.checkRedirect}
	return f
}

// Check reports whether a URL may be fetched, as far as that is possible without resolving its
// name.
func (f *Fetcher) Check(raw string) error {
	_, err := f.parse(raw)
	return err
}

func (f *Fetcher) parse(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		// The parser's message may quote a password.
		return nil, fmt.Errorf("%w: it is not a valid URL", ErrRefused)
	}
	return u, f.checkURL(u)
}

func (f *Fetcher) checkURL(u *url.URL) error {
	switch {
	case u.Scheme == "https":
	case u.Scheme == "http" && f.cfg.AllowHTTP:
	case u.Scheme == "http":
		return fmt.Errorf("%w: %s is http; use https, or have the node's administrator set --allow-http", ErrRefused, Redact(u.String()))
	default:
		return fmt.Errorf("%w: the scheme %q is not https", ErrRefused, shorten(u.Scheme))
	}
	if u.Hostname() == "" || u.Opaque != "" {
		return fmt.Errorf("%w: the URL has no host", ErrRefused)
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		return f.checkAddr(addr)
	}
	return nil
}

func (f *Fetcher) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > MaxRedirects {
		return fmt.Errorf("%w: more than %d redirects", ErrRefused, MaxRedirects)
	}
	if err := f.checkURL(req.URL); err != nil {
		return fmt.Errorf("redirect: %w", err)
	}
	// The client would send the complete URL of the previous server to the next one. Its query
	// may contain a token.
	req.Header.Del("Referer")
	return nil
}

// control checks the address of a new connection. It sees the address itself, so the result of
// name resolution does not matter.
func (f *Fetcher) control(_ context.Context, network, address string, _ syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return fmt.Errorf("%w: connections over %s are not allowed", ErrRefused, network)
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: the address %q cannot be parsed", ErrRefused, address)
	}
	return f.checkAddr(ap.Addr())
}

func (f *Fetcher) checkAddr(addr netip.Addr) error {
	if what := (Guard{AllowNetworks: f.cfg.AllowNetworks}).Refuses(addr); what != "" {
		return fmt.Errorf("%w: it leads to %s, %s; the node's administrator can allow its network", ErrRefused, addr.Unmap().WithZone(""), what)
	}
	return nil
}

// Redact returns a URL without the parts that may be secret: user, password, query and fragment.
func Redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" {
		return "(an invalid URL)"
	}
	out := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return shorten(out.String())
}

// quoted finds URLs in the messages of libraries.
var quoted = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"']+`)

// scrub removes secrets from an error of the HTTP client. They may be in its URL, and in the URL
// of a redirect.
func scrub(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	message := err.Error()
	clean := quoted.ReplaceAllStringFunc(message, Redact)
	if clean == message {
		return err
	}
	return &scrubbed{message: clean, err: err}
}

type scrubbed struct {
	message string
	err     error
}

func (s *scrubbed) Error() string { return s.message }
func (s *scrubbed) Unwrap() error { return s.err }

// maxShown limits the texts of others in errors, in bytes.
const maxShown = 200

func shorten(s string) string { return excerpt.Of(s, maxShown) }
