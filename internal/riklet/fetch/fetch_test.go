package fetch

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

func config(change func(*Config)) Config {
	cfg := Config{AllowHTTP: true, AllowNetworks: loopback, Bytes: 1 << 20, Time: time.Minute, Stall: time.Minute, ReserveBytes: 1}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

func serve(tb testing.TB, handler http.HandlerFunc) *httptest.Server {
	tb.Helper()
	s := httptest.NewServer(handler)
	tb.Cleanup(s.Close)
	return s
}

func TestGet(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("ETag", `"v1"`)
		if r.Header.Get("If-None-Match") == `"v1"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		fmt.Fprint(w, "hello")
	}))
	t.Cleanup(s.Close)
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	f := New(config(func(c *Config) { c.RootCAs, c.AllowHTTP = pool, false }))
	r := Request{
		URL:    strings.Replace(s.URL, "https://", "https://me:secret@", 1) + "/x",
		Path:   filepath.Join(t.TempDir(), "f"),
		SHA256: "2CF24DBA5FB0A30E26E83B2AC5B9E29E1B161E5C1FA7425E73043362938B9824",
	}
	res, err := f.Get(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(r.Path); err != nil || string(data) != "hello" || res.Bytes != 5 || res.SHA256 != strings.ToLower(r.SHA256) || res.NotModified {
		t.Errorf("got %q, %v, %+v", data, err, res)
	}
	r.Path += "2"
	r.Known = res.Validators
	if res, err = f.Get(t.Context(), r); err != nil || !res.NotModified {
		t.Errorf("a file that is here: %+v, %v; want not modified", res, err)
	}
	if _, err := os.Lstat(r.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was written: %v", err)
	}
}

// Each kind of misbehavior of a server has its own error, and leaves no file.
func TestHostileServers(t *testing.T) {
	t.Parallel()
	forever := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}
	drip := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			fmt.Fprint(w, "x")
			_ = http.NewResponseController(w).Flush()
		}
	}
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		change  func(*Config)
		sum     string
		want    error
		says    string
	}{
		{"never ends", forever, nil, "", ErrTooLarge, "more than 1048576 bytes"},
		{"sends single bytes forever", drip, func(c *Config) { c.Bytes, c.Time = 1<<40, 200*time.Millisecond }, "", ErrTimeout, "200ms"},
		{"sends nothing more", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "x")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, func(c *Config) { c.Stall = 100 * time.Millisecond }, "", ErrStalled, "the server sent no data"},
		{"never answers", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, func(c *Config) { c.Stall = 100 * time.Millisecond }, "", ErrStalled, "the server sent no data"},
		{"500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, nil, "", ErrStatus, "500"},
		{"404", http.NotFound, nil, "", ErrStatus, "check the URL"},
		{"304 unasked", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) }, nil, "", ErrStatus, "304"},
		{"206 unasked", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusPartialContent) }, nil, "", ErrStatus, "206"},
		{"announces too much", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "99999999999") }, nil, "", ErrTooLarge, "it has 99999999999 bytes"},
		{"ends early", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "short")
		}, nil, "", ErrLength, "5 of 100 bytes"},
		{"another file", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "evil") }, nil, strings.Repeat("0", 64), ErrDigest, "instead of sha256:000"},
		{"checksum of noise", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "x") }, nil, "xyz", ErrRefused, "64 hexadecimal"},
		{"redirects forever", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"x", http.StatusFound)
		}, nil, "", ErrRefused, "more than 5 redirects"},
		{"redirects to a file", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}, nil, "", ErrRefused, `"file"`},
		{"redirects to metadata", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		}, nil, "", ErrRefused, "metadata service"},
		{"redirects to a private address", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://10.0.0.1/", http.StatusFound)
		}, nil, "", ErrRefused, "a private address"},
		{"no space", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1000)) }, func(c *Config) { c.ReserveBytes = 1 << 60 }, "", ErrNoSpace, "must stay free"},
		{"huge header", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, nil, "", nil, "header"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, tc.handler)
			f := New(config(tc.change))
			path := filepath.Join(t.TempDir(), "f")
			_, err := f.Get(t.Context(), Request{URL: s.URL + "/x?token=secret", Path: path, SHA256: tc.sum})
			if err == nil || (tc.want != nil && !errors.Is(err, tc.want)) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Get = %v, want %v with the text %q", err, tc.want, tc.says)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%q contains a secret", err)
			}
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a file stays: %v", err)
			}
		})
	}
}

// An allowed server redirects to the node's own loopback, by address and by its names.
func TestRedirectToLoopback(t *testing.T) {
	t.Parallel()
	var reached atomic.Bool
	inner := serve(t, func(http.ResponseWriter, *http.Request) { reached.Store(true) })
	port := inner.Listener.Addr().(*net.TCPAddr).Port
	for _, tc := range []struct {
		host string
		// The resolvers of machines differ in what they parse as an address.
		unknown bool
	}{
		{"localhost", false}, {"127.0.0.1", false}, {"[::ffff:127.0.0.1]", false}, {"[::1]", false}, {"0.0.0.0", false},
		{"127.1", true}, {"2130706433", true}, {"0x7f000001", true},
	} {
		outer := serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, fmt.Sprintf("http://%s:%d/secret", tc.host, port), http.StatusFound)
		})
		f := New(config(func(c *Config) { c.AllowNetworks = nil }))
		// Only the connection to the public server is redirected by the test.
		f.client.Transport = &publicServer{addr: outer.Listener.Addr().String(), others: f.client.Transport}
		_, err := f.Get(t.Context(), Request{URL: "http://public.test/", Path: filepath.Join(t.TempDir(), "f")})
		if err == nil || reached.Load() || (!tc.unknown && !errors.Is(err, ErrRefused)) {
			t.Errorf("%s: reached %v, error %v; want %v", tc.host, reached.Load(), err, ErrRefused)
		}
	}
}

// publicServer represents a server on the Internet, which tests cannot reach.
type publicServer struct {
	addr   string
	others http.RoundTripper
}

func (p *publicServer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != "public.test" {
		return p.others.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	r.URL.Host = p.addr
	return http.DefaultTransport.RoundTrip(r)
}

func TestRefusedURLs(t *testing.T) {
	t.Parallel()
	f := New(Config{Bytes: 1, Time: time.Second, Stall: time.Second})
	for _, bad := range []string{
		"", "x", "/etc/passwd", "file:///etc/passwd", "http://example.com/x", "ftp://example.com/x", "https:///x", "https:example.com",
		"https://user:secret@exa mple.com/", "https://host:secret/", "https://127.0.0.1/", "https://[::1]/", "https://[fe80::1%25eth0]/",
		"https://169.254.169.254/", "https://10.1.2.3/", "https://172.16.0.1/", "https://192.168.1.1/", "https://100.64.0.1/",
		"https://0.0.0.0/", "https://224.0.0.1/", "https://255.255.255.255/", "https://[::]/", "https://[ff02::1]/", "https://[fd00::1]/",
		"https://[::ffff:10.0.0.1]/", "https://[64:ff9b::7f00:1]/", "https://[2002:7f00:1::]/", "https://[::7f00:1]/",
	} {
		err := f.Check(bad)
		if !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), "secret") {
			t.Errorf("Check(%q) = %v, want %v without the secret", bad, err, ErrRefused)
		}
	}
	for _, good := range []string{"https://example.com/x.tar.gz", "https://user:p@example.com:8443/x?y", "https://8.8.8.8/", "https://[2606:4700::1]/"} {
		if err := f.Check(good); err != nil {
			t.Errorf("Check(%q) = %v", good, err)
		}
	}
}

func TestErrorsReportNoSecrets(t *testing.T) {
	t.Parallel()
	// The client's error contains a redirect that cannot be parsed.
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://user:secret@127.0.0.1:1/?token=secret")
		w.WriteHeader(http.StatusFound)
	})
	f := New(config(nil))
	for _, u := range []string{
		strings.Replace(s.URL, "http://", "http://user:secret@", 1) + "/?token=secret",
		"http://user:secret@127.0.0.1:1/?token=secret",
		"http://user:secret@no-such-host.invalid/?token=secret",
	} {
		_, err := f.Get(t.Context(), Request{URL: u, Path: filepath.Join(t.TempDir(), "f")})
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "user") {
			t.Errorf("Get = %v, want an error without the credentials", err)
		}
	}
}

// TestRedirectsReportNoSecrets checks that the target of a redirect does not receive the URL
// that led there.
func TestRedirectsReportNoSecrets(t *testing.T) {
	t.Parallel()
	reported := make(chan http.Header, 1)
	to := serve(t, func(_ http.ResponseWriter, r *http.Request) { reported <- r.Header.Clone() })
	from := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to.URL+"/file", http.StatusFound) })
	u := strings.Replace(from.URL, "http://", "http://user:secret@", 1) + "/?token=secret"
	if _, err := New(config(nil)).Get(t.Context(), Request{URL: u, Path: filepath.Join(t.TempDir(), "f")}); err != nil {
		t.Fatal(err)
	}
	if h := <-reported; h.Get("Referer") != "" || h.Get("Authorization") != "" {
		t.Errorf("the target of the redirect received %v", h)
	}
}

func TestLocalPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	private := filepath.Join(dir, "private")
	app := filepath.Join(dir, "app")
	for _, d := range []string{private, app} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"out": private, "in": app, "passwd": "/etc/passwd", "loop": filepath.Join(dir, "loop")} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"", "app", "/", "/etc", "/proc/self/root", "/root", private, dir, filepath.Join(dir, "out"), filepath.Join(dir, "passwd"), filepath.Join(dir, "loop"), filepath.Join(app, "../private"), filepath.Join(dir, "none"), "/tmp\x00"} {
		if got, _, err := LocalPath(bad, []string{private}); !errors.Is(err, ErrRefused) {
			t.Errorf("LocalPath(%q) = %q, %v; want %v", bad, got, err, ErrRefused)
		}
	}
	for _, good := range []string{app, filepath.Join(dir, "in"), app + "/../app/."} {
		if got, info, err := LocalPath(good, []string{private}); err != nil || got != app || !info.IsDir() {
			t.Errorf("LocalPath(%q) = %q, %v; want %q", good, got, err, app)
		}
	}
}

func TestCopy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from := filepath.Join(dir, "from")
	if err := os.WriteFile(from, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := New(config(func(c *Config) { c.Bytes = 5 }))
	res, err := f.Copy(t.Context(), from, filepath.Join(dir, "to"), "")
	if err != nil || res.Bytes != 5 {
		t.Errorf("Copy = %+v, %v", res, err)
	}
	if sum, err := f.Sum(t.Context(), from); err != nil || sum != res.SHA256 {
		t.Errorf("Sum = %s, %v; want %s", sum, err, res.SHA256)
	}
	if _, err := f.Copy(t.Context(), from, filepath.Join(dir, "bad"), strings.Repeat("0", 64)); !errors.Is(err, ErrDigest) {
		t.Errorf("another checksum: %v, want %v", err, ErrDigest)
	}
	if _, err := f.Copy(t.Context(), dir, filepath.Join(dir, "bad"), ""); !errors.Is(err, ErrRefused) {
		t.Errorf("a directory: %v, want %v", err, ErrRefused)
	}
	if err := os.WriteFile(from, []byte("hello!"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Sum(t.Context(), from); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Sum of too much: %v, want %v", err, ErrTooLarge)
	}
	if _, err := f.Copy(t.Context(), from, filepath.Join(dir, "bad"), ""); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Copy of too much: %v, want %v", err, ErrTooLarge)
	}
	if _, err := os.Lstat(filepath.Join(dir, "bad")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file stays: %v", err)
	}
}
