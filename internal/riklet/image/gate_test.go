package image

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"rik.dev/rik/internal/ociimage"
)

// inside starts a service of the node that no tenant may reach. It answers every request with
// its secret.
func inside(tb testing.TB) (url string, asked *atomic.Int64) {
	tb.Helper()
	asked = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, `{"token":"the node's secret"}`)
	}))
	tb.Cleanup(s.Close)
	return s.URL, asked
}

// named writes a registries.conf that lets the pull reach only the given registries on loopback.
func named(tb testing.TB, hosts ...string) string {
	tb.Helper()
	var text strings.Builder
	for _, host := range hosts {
		fmt.Fprintf(&text, "[[registry]]\nlocation = %q\ninsecure = true\n", host)
	}
	path := filepath.Join(tb.TempDir(), "registries.conf")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// A registry redirects pulls to a token server and to blob stores of its choice. It must not
// make the node send requests to the node's own services, and must not receive their answers.
// Package fetch tests other addresses; here a failing check would send requests to them.
func TestPullIsNotRedirectedToPrivateAddresses(t *testing.T) {
	t.Parallel()
	dir, _, _ := layout(t, small())
	good := &ociimage.Registry{Dir: dir}
	secret, asked := inside(t)
	port := secret[strings.LastIndex(secret, ":"):]
	var exposed atomic.Value
	evil := func(realm, redirect string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			auth := r.Header.Get("Authorization")
			if strings.Contains(auth, "secret") {
				exposed.Store(auth)
			}
			switch {
			case realm != "" && auth == "":
				w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="x"`, realm))
				w.WriteHeader(http.StatusUnauthorized)
			case redirect != "" && strings.Contains(r.URL.Path, "/"+redirect+"/"):
				http.Redirect(w, r, secret+"/", http.StatusTemporaryRedirect)
			default:
				good.ServeHTTP(w, r)
			}
		}
	}
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		says    string
	}{
		"token server":             {evil(secret+"/token", ""), ", a loopback address; "},
		"token server by name":     {evil("https://localhost"+port+"/token", ""), ", a loopback address; "},
		"token server without TLS": {evil("http://localhost"+port+"/token", ""), "does not use TLS"},
		"manifest elsewhere":       {evil("", "manifests"), ", a loopback address; "},
		"blobs elsewhere":          {evil("", "blobs"), ", a loopback address; "},
	} {
		host := registry(t, tc.handler)
		s := open(t, func(c *Config) { c.AllowNetworks, c.RegistriesConf = nil, named(t, host) })
		_, err := s.Pull(t.Context(), PullRequest{Reference: host + "/app:v1"})
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %v with the text %q", name, err, ErrRefused, tc.says)
		}
		if err != nil && (strings.Contains(err.Error(), "socks") || !strings.Contains(err.Error(), "registries.conf")) {
			t.Errorf("%s: %v, want the next step, and no text about the tunnel", name, err)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the service was asked %d times, want never", n)
	}
	if got := exposed.Load(); got != nil {
		t.Errorf("the registry received %q", got)
	}
}

// The host in the image's reference must not lead to the node's own services either.
func TestPullFromLoopbackNeedsPermission(t *testing.T) {
	t.Parallel()
	dir, _, digest := layout(t, small())
	reg := &ociimage.Registry{Dir: dir}
	var asked atomic.Int64
	host := registry(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		reg.ServeHTTP(w, r)
	}))
	byName := strings.Replace(host, "127.0.0.1", "localhost", 1)
	none := open(t, func(c *Config) { c.AllowNetworks = nil })
	for _, host := range []string{host, byName} {
		_, err := none.Pull(t.Context(), PullRequest{Reference: host + "/app:v1"})
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "--allow-fetch") {
			t.Errorf("%s: %v, want %v with the way to allow it", host, err, ErrRefused)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the registry was asked %d times, want never", n)
	}
	for name, change := range map[string]func(*Config){
		"its network": func(c *Config) { c.AllowNetworks = loopback },
		"its name":    func(c *Config) { c.AllowNetworks, c.RegistriesConf = nil, named(t, host) },
	} {
		img, err := open(t, change).Pull(t.Context(), PullRequest{Reference: host + "/app:v1"})
		if err != nil || img.Digest != digest {
			t.Errorf("with %s: %v, %v; want %s", name, img, err, digest)
		}
	}
}

// A directory of certificates also allows a registry. This one uses TLS.
func TestPullFromLoopbackByItsCertificates(t *testing.T) {
	t.Parallel()
	dir, _, digest := layout(t, small())
	reg := httptest.NewTLSServer(&ociimage.Registry{Dir: dir})
	t.Cleanup(reg.Close)
	host := strings.TrimPrefix(reg.URL, "https://")
	certs := t.TempDir()
	s := open(t, func(c *Config) { c.AllowNetworks, c.CertDir = nil, certs })
	if _, err := s.Pull(t.Context(), PullRequest{Reference: host + "/app:v1"}); !errors.Is(err, ErrRefused) {
		t.Errorf("without certificates: %v, want %v", err, ErrRefused)
	}
	if err := os.Mkdir(filepath.Join(certs, host), 0o700); err != nil {
		t.Fatal(err)
	}
	img, err := s.Pull(t.Context(), PullRequest{Reference: host + "/app:v1"})
	if err != nil || img.Digest != digest {
		t.Errorf("with certificates: %v, %v; want %s", img, err, digest)
	}
}

// A node that reaches registries through a proxy continues to do so.
func TestPullByTheProxyOfTheNode(t *testing.T) {
	dir, _, digest := layout(t, small())
	reg := &ociimage.Registry{Dir: dir}
	var asked atomic.Value
	proxy := registry(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.Host)
		reg.ServeHTTP(w, r) // 404 for CONNECT, so that the library continues without TLS
	}))
	t.Setenv("HTTP_PROXY", "http://"+proxy)
	t.Setenv("HTTPS_PROXY", "http://"+proxy)
	t.Setenv("NO_PROXY", "")
	const host = "registry.invalid:5000"
	s := open(t, func(c *Config) { c.AllowNetworks, c.RegistriesConf = nil, named(t, host) })
	img, err := s.Pull(t.Context(), PullRequest{Reference: host + "/app:v1"})
	if err != nil || img.Digest != digest || asked.Load() != host {
		t.Errorf("Pull = %v, %v, the proxy was asked for %v; want %s and %s", img, err, asked.Load(), digest, host)
	}
}

// A token server next to the registry and a separate store for blobs work if the administrator
// has named them.
func TestPullFollowsAllowedRedirects(t *testing.T) {
	t.Parallel()
	dir, _, digest := layout(t, small())
	good := &ociimage.Registry{Dir: dir}
	tokens := registry(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"token":"abc"}`) }))
	blobs := registry(t, good)
	host := registry(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer abc":
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="x"`, tokens))
			w.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(r.URL.Path, "/blobs/"):
			http.Redirect(w, r, "http://"+blobs+r.URL.Path, http.StatusTemporaryRedirect)
		default:
			good.ServeHTTP(w, r)
		}
	}))
	s := open(t, func(c *Config) { c.AllowNetworks, c.RegistriesConf = nil, named(t, host, tokens, blobs) })
	img, err := s.Pull(t.Context(), PullRequest{Reference: host + "/app:v1"})
	if err != nil || img.Digest != digest {
		t.Errorf("Pull = %v, %v; want %s", img, err, digest)
	}
}

// The error of a connection is the same as without a tunnel.
func TestPullExplainsFailedConnections(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	host := strings.TrimPrefix(s.URL, "http://")
	s.Close()
	_, err := open(t, nil).Pull(t.Context(), PullRequest{Reference: host + "/app:v1"})
	if err == nil || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "connection refused") || strings.Contains(err.Error(), "socks") {
		t.Errorf("Pull = %v, want that the connection was refused, to be tried again", err)
	}
}
