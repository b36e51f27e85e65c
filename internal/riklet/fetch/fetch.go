// Package fetch downloads files whose URLs tenants choose. It goes only where it is
// allowed to: by https, to public addresses and those that the administrator names,
// checked where the connection is made, so that neither a redirect nor a name that
// changes its meaning leads elsewhere. What comes is bounded in bytes and time, checked
// and never held in memory. A connection that breaks off is resumed; trying again from the
// start is up to the caller.
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
)

// Config says where a Fetcher may go.
type Config struct {
	// AllowHTTP accepts URLs without TLS.
	AllowHTTP bool
	// AllowNetworks are networks that may be reached although they are not public.
	AllowNetworks []netip.Prefix
	// AllowProxy uses the proxy of the environment. It resolves names itself, so that
	// only the proxy's own address and addresses in URLs are checked.
	AllowProxy bool
	// Bytes is the most that a file may have; Time bounds a download; Stall is how long
	// it may stand still. Required.
	Bytes       int64
	Time, Stall time.Duration
	// ReserveBytes stay free on the file system that is written to.
	ReserveBytes int64
	// RootCAs are those of the system when nil.
	RootCAs *x509.CertPool
}

// MaxRedirects is how many redirects are followed.
const MaxRedirects = 5

// Fetcher downloads files. Its methods may be called at once.
type Fetcher struct {
	cfg    Config
	client *http.Client
	pause  time.Duration // before a connection is resumed for the first time
}

// New makes a Fetcher.
func New(cfg Config) *Fetcher {
	f := &Fetcher{cfg: cfg, pause: resumePause}
	dialer := &net.Dialer{Timeout: cfg.Stall, ControlContext: f.control}
	transport := &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.RootCAs},
		MaxResponseHeaderBytes: 64 << 10,
		// The file as it is: what it is compressed with is its own affair.
		DisableCompression: true,
		// Downloads are rare: no connection is worth keeping.
		DisableKeepAlives: true,
		ForceAttemptHTTP2: true,
	}
	if cfg.AllowProxy {
		transport.Proxy = http.ProxyFromEnvironment
	}
	f.client = &http.Client{Transport: transport, CheckRedirect: f.checkRedirect}
	return f
}

// Check tells whether a URL may be fetched, as far as that can be told without asking
// for its name.
func (f *Fetcher) Check(raw string) error {
	_, err := f.parse(raw)
	return err
}

func (f *Fetcher) parse(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		// The parser's message quotes what may be a password.
		return nil, fmt.Errorf("%w: it is not a valid URL", ErrRefused)
	}
	return u, f.checkURL(u)
}

func (f *Fetcher) checkURL(u *url.URL) error {
	switch {
	case u.Scheme == "https":
	case u.Scheme == "http" && f.cfg.AllowHTTP:
	case u.Scheme == "http":
		return fmt.Errorf("%w: %s is http; use https, or let the node's administrator allow http", ErrRefused, Redact(u.String()))
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
	// The client would tell the next server the whole URL that led to it, and in its query
	// may be a token.
	req.Header.Del("Referer")
	return nil
}

// control sees the address that is about to be connected to, whatever name it came
// from and however often that name changes.
func (f *Fetcher) control(_ context.Context, network, address string, _ syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return fmt.Errorf("%w: a connection over %s", ErrRefused, network)
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: the address %q cannot be judged", ErrRefused, address)
	}
	return f.checkAddr(ap.Addr())
}

func (f *Fetcher) checkAddr(addr netip.Addr) error {
	if what := (Guard{AllowNetworks: f.cfg.AllowNetworks}).Refuses(addr); what != "" {
		return fmt.Errorf("%w: it leads to %s, %s; the node's administrator can allow its network", ErrRefused, addr.Unmap().WithZone(""), what)
	}
	return nil
}

// Redact is a URL without what may be secret in it: user, password, query, fragment.
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

// scrub makes an error of the HTTP client fit to be shown: its URL may have secrets,
// and so may one that a server sent as a redirect.
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

func shorten(s string) string {
	const most = 200
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
