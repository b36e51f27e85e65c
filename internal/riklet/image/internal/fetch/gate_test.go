package fetch

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"go.podman.io/image/v5/types"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

const registriesConf = `
[[registry]]
location = "plain.example:5000"
insecure = true

[[registry]]
prefix = "far.example"
location = "far.example/team"
[[registry.mirror]]
location = "Mirror.example:5000/far"

[[registry]]
prefix = "*.lab.example"
insecure = true
`

// validateOf returns a gate without a tunnel.
func validateOf(tb testing.TB, image string) *gate {
	tb.Helper()
	dir := tb.TempDir()
	conf := filepath.Join(dir, "registries.conf")
	if err := os.WriteFile(conf, []byte(registriesConf), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "certs", "certified.example:5443"), 0o700); err != nil {
		tb.Fatal(err)
	}
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		tb.Fatal(err)
	}
	known, err := findPlaces(named, &types.SystemContext{
		SystemRegistriesConfPath: conf, SystemRegistriesConfDirPath: conf + ".d", DockerPerHostCertDirPath: filepath.Join(dir, "certs"),
	})
	if err != nil {
		tb.Fatal(err)
	}
	return &gate{
		places: known, networks: []netip.Prefix{netip.MustParsePrefix("10.99.0.0/16")},
		proxy:  func(*http.Request) (*url.URL, error) { return nil, nil },
		tunnel: &tunnel{url: &url.URL{Scheme: "socks5", Host: "127.0.0.1:1"}},
	}
}

func TestGateChecksAddresses(t *testing.T) {
	t.Parallel()
	const image = "mine.example:5000/app"
	for _, tc := range []struct{ image, target, addr, refused string }{
		{image, "mine.example:5000", "1.1.1.1", ""},
		{image, "mine.example:5000", "10.0.0.1", ""},
		{image, "mine.example:5001", "10.0.0.1", ""},
		{image, "MINE.example:5001", "fd00::1", ""},
		{image, "mine.example:5000", "127.0.0.1", "loopback"},
		{image, "mine.example:5000", "::ffff:127.0.0.1", "loopback"},
		{image, "mine.example:5000", "169.254.169.254", "metadata"},
		{image, "mine.example:5000", "fd00:ec2::254", "metadata"},
		{image, "mine.example:5000", "fe80::1", "link-local"},
		{image, "mine.example:5000", "0.0.0.0", "unspecified"},
		{image, "mine.example:5000", "224.0.0.1", "multicast"},
		{image, "auth.example:443", "1.1.1.1", ""},
		{image, "auth.example:443", "10.0.0.1", "private"},
		{image, "auth.example:443", "10.99.0.1", ""},
		{image, "auth.example:443", "127.0.0.1", "loopback"},
		{image, "notmine.example:5000", "10.0.0.1", "private"},
		// The locations that the administrator configured, and their hosts.
		{image, "plain.example:5000", "127.0.0.1", ""},
		{image, "plain.example:5001", "127.0.0.1", "loopback"},
		{image, "plain.example:5001", "10.0.0.1", ""},
		{image, "mirror.example:5000", "169.254.1.1", ""},
		{image, "far.example:443", "127.0.0.1", ""},
		{image, "far.example:22", "127.0.0.1", "loopback"},
		{image, "certified.example:5443", "127.0.0.1", ""},
		// A wildcard domain allows none of its hosts.
		{"a.lab.example/app", "a.lab.example:443", "127.0.0.1", "loopback"},
		{"a.lab.example/app", "a.lab.example:443", "10.0.0.1", ""},
		{"a.lab.example/app", "b.lab.example:443", "10.0.0.1", "private"},
		{"alpine", "registry-1.docker.io:443", "10.0.0.1", ""},
		{"alpine", "auth.docker.io:443", "10.0.0.1", "private"},
		{"localhost:5000/app", "localhost:5000", "127.0.0.1", "loopback"},
		{"127.0.0.1/app", "127.0.0.1:443", "127.0.0.1", "loopback"},
	} {
		err := validateOf(t, tc.image).validate(tc.target, netip.MustParseAddr(tc.addr))
		if tc.refused == "" && err != nil {
			t.Errorf("%s: %s at %s: %v, want no refusal", tc.image, tc.target, tc.addr, err)
		}
		if tc.refused != "" && (!errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), tc.refused) || !strings.Contains(err.Error(), "--allow-fetch")) {
			t.Errorf("%s: %s at %s: %v, want a refusal with the text %q and --allow-fetch", tc.image, tc.target, tc.addr, err, tc.refused)
		}
	}
}

func TestGateChecksURLs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ image, url, refused string }{
		{"mine.example/app", "https://mine.example/v2/", ""},
		{"mine.example/app", "http://mine.example/v2/", "does not use TLS"},
		{"mine.example/app", "http://auth.example/token", "does not use TLS"},
		{"mine.example/app", "http://169.254.169.254/latest", "does not use TLS"},
		{"mine.example/app", "https://169.254.169.254/latest", "metadata"},
		{"mine.example/app", "https://[fe80::1%25eth0]/", "link-local"},
		{"mine.example/app", "https://10.0.0.1/", "private"},
		{"mine.example/app", "https://10.99.0.1/", ""},
		{"mine.example/app", "ftp://mine.example/", "does not use TLS"},
		{"10.0.0.1:5000/app", "https://10.0.0.1:5000/v2/", ""},
		{"10.0.0.1:5000/app", "http://10.0.0.1:5000/v2/", "does not use TLS"},
		{"plain.example:5000/app", "http://plain.example:5000/v2/", ""},
		{"plain.example:5000/app", "http://plain.example:5001/token", ""},
		{"plain.example:5000/app", "http://auth.example/token", "does not use TLS"},
		{"a.lab.example/app", "http://a.lab.example/v2/", ""},
		{"a.lab.example/app", "http://b.lab.example/v2/", "does not use TLS"},
		{"localhost:5000/app", "http://localhost:5000/v2/", ""}, // the address is checked later
		{"localhost:5000/app", "http://127.0.0.1:22/", "does not use TLS"},
		{"127.0.0.1:5000/app", "http://127.0.0.1:5000/v2/", "loopback"},
	} {
		u, err := url.Parse(tc.url)
		if err != nil {
			t.Fatal(err)
		}
		g := validateOf(t, tc.image)
		through, err := g.route(u)
		if tc.refused == "" && (err != nil || through != g.tunnel.url) {
			t.Errorf("%s: route(%s) = %v, %v; want the tunnel", tc.image, tc.url, through, err)
		}
		if tc.refused != "" && (!errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), tc.refused)) {
			t.Errorf("%s: route(%s) = %v, %v; want a refusal with the text %q", tc.image, tc.url, through, err, tc.refused)
		}
	}
}

// The node's own proxy is used. Checks that need no address happen before.
func TestGateUsesTheProxyOfTheNode(t *testing.T) {
	t.Parallel()
	g := validateOf(t, "mine.example/app")
	own := &url.URL{Scheme: "http", Host: "proxy.example:3128"}
	g.proxy = func(*http.Request) (*url.URL, error) { return own, nil }
	if got, err := g.route(&url.URL{Scheme: "https", Host: "mine.example"}); err != nil || got != own {
		t.Errorf("route = %v, %v; want the node's proxy", got, err)
	}
	if _, err := g.route(&url.URL{Scheme: "https", Host: "169.254.169.254"}); !errors.Is(err, wire.ErrRefused) {
		t.Errorf("route to the metadata service = %v, want %v", err, wire.ErrRefused)
	}
}
