package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/distribution/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"

	guard "rik.dev/rik/internal/riklet/fetch"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// gate decides which addresses a pull may connect to. A registry is not trusted, and redirects
// the library to token servers and stores of its choice. The library's dialer cannot be
// replaced, but the library requests a proxy for every request, including redirects. The gate
// sends each request through a tunnel in this process, which checks the address that it connects
// to.
type gate struct {
	places
	networks []netip.Prefix
	proxy    proxyFunc
	tunnel   *tunnel

	mu sync.Mutex
	// failures are the errors of connections, by host:port. The client of a tunnel learns little
	// more than that there is no connection.
	failures map[string]error
}

type proxyFunc = func(*http.Request) (*url.URL, error)

// dialTime is the library's own timeout for a connection.
const dialTime = 30 * time.Second

// openGate opens the gate of a pull and configures sys to use it. The caller must close it.
func openGate(req wire.Request, named reference.Named, sys *types.SystemContext) (*gate, error) {
	known, err := findPlaces(named, sys)
	if err != nil {
		return nil, err
	}
	g := &gate{places: known, networks: req.AllowNetworks, proxy: http.ProxyFromEnvironment, failures: map[string]error{}}
	if g.tunnel, err = openTunnel(g.connect); err != nil {
		return nil, fmt.Errorf("restricting the connections of the pull: %w", err)
	}
	sys.DockerProxy = g.route
	return g, nil
}

// Close ends the connections.
func (g *gate) Close() error { return g.tunnel.Close() }

// route checks what the URL alone shows, and returns the proxy for it. If the node has its own
// proxy for this host, that proxy resolves the name, so it must also check the address.
func (g *gate) route(u *url.URL) (*url.URL, error) {
	if u.Scheme != "https" && !g.plain[strings.ToLower(u.Hostname())] {
		return nil, fmt.Errorf("%w: %s://%s does not use TLS; the node's administrator can allow that with insecure = true for %s in registries.conf",
			wire.ErrRefused, u.Scheme, u.Host, u.Host)
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		if err := g.validate(target(u), addr); err != nil {
			return nil, err
		}
	}
	if proxy, err := g.proxy(&http.Request{URL: u}); proxy != nil || err != nil {
		return proxy, err
	}
	return g.tunnel.url, nil
}

// connect connects to host:port. It checks every address that it tries.
func (g *gate) connect(ctx context.Context, target string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: dialTime, KeepAlive: dialTime, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%w: the address %q cannot be parsed", wire.ErrRefused, address)
		}
		return g.validate(target, to.Addr())
	}}
	conn, err := dialer.DialContext(ctx, "tcp", target)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failures[target] = err
	return conn, err
}

func (g *gate) validate(target string, addr netip.Addr) error {
	target = strings.ToLower(target)
	if g.named[target] {
		return nil
	}
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return err
	}
	what := guard.Guard{AllowNetworks: g.networks, AllowPrivate: g.hosts[host]}.Refuses(addr)
	if what == "" {
		return nil
	}
	return fmt.Errorf("%w: %s leads to %s, %s; the node's administrator can allow the network with --allow-fetch, or %s in registries.conf",
		wire.ErrRefused, target, addr, what, target)
}

// explain replaces the error of the tunnel's client by the error of the connection. It also
// works on a nil gate.
func (g *gate) explain(err error) error {
	var op *net.OpError
	if g == nil || !errors.As(err, &op) || op.Op != "socks connect" || op.Addr == nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	cause := g.failures[op.Addr.String()]
	if cause == nil {
		return err
	}
	return &explained{message: strings.ReplaceAll(err.Error(), op.Error(), cause.Error()), errs: []error{cause, err}}
}

type explained struct {
	message string
	errs    []error
}

func (e *explained) Error() string   { return e.message }
func (e *explained) Unwrap() []error { return e.errs }

// target returns the host:port of a URL.
func target(u *url.URL) string {
	port := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	return net.JoinHostPort(strings.ToLower(u.Hostname()), cmp.Or(u.Port(), port))
}

// places are what a pull may reach in addition to public addresses with TLS. Names are in lower
// case.
type places struct {
	// named are the host:port that the administrator configured. They may have any address.
	named map[string]bool
	// hosts are those of registries, without ports. They may be in private networks.
	hosts map[string]bool
	// plain are the hosts that may be used without TLS.
	plain map[string]bool
}

// add adds a location such as registry.example:5000/team.
func (p *places) add(location string, named, plain bool) {
	domain, _, _ := strings.Cut(strings.ToLower(location), "/")
	if domain == "docker.io" {
		domain = "registry-1.docker.io" // as the library does
	}
	u := url.URL{Host: domain}
	host := u.Hostname()
	if host == "" {
		return
	}
	p.hosts[host] = true
	if plain {
		p.plain[host] = true
	}
	if !named {
		return
	}
	for _, scheme := range []string{"https", "http"} {
		p.named[target(&url.URL{Scheme: scheme, Host: domain})] = true
	}
}

// findPlaces reads the node's configuration of registries.
func findPlaces(named reference.Named, sys *types.SystemContext) (places, error) {
	p := places{named: map[string]bool{}, hosts: map[string]bool{}, plain: map[string]bool{}}
	all, err := sysregistriesv2.GetRegistries(sys)
	if err != nil {
		return p, fmt.Errorf("reading the node's configuration of registries: %w", err)
	}
	for _, r := range all {
		p.add(r.Location, true, r.Insecure)
		for _, mirror := range r.Mirrors {
			p.add(mirror.Location, true, mirror.Insecure)
		}
	}
	// This also finds the entry of a domain such as *.example.com, which has no location.
	own, err := sysregistriesv2.FindRegistry(sys, named.Name())
	if err != nil {
		return p, fmt.Errorf("reading the node's configuration of registries: %w", err)
	}
	domain := reference.Domain(named)
	p.add(domain, false, isLoopback(domain) || own != nil && own.Insecure)
	for _, dir := range certDirs(sys) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return p, fmt.Errorf("reading the certificates of registries: %w", err)
		}
		for _, e := range entries {
			p.add(e.Name(), true, false)
		}
	}
	return p, nil
}

// certDirs returns the directories in which the library looks for certificates, in
// subdirectories host:port.
func certDirs(sys *types.SystemContext) []string {
	if sys.DockerPerHostCertDirPath != "" {
		return []string{sys.DockerPerHostCertDirPath}
	}
	return []string{"/etc/containers/certs.d", "/etc/docker/certs.d"}
}
