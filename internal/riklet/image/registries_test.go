package image

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"rik.dev/rik/internal/ociimage"
)

// writeFile creates a file with its directory.
func writeFile(tb testing.TB, path, text string) {
	tb.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		tb.Fatal(err)
	}
}

// withDir makes a store use the files of a directory.
func withDir(dir string) func(*Config) {
	return func(c *Config) { c.RegistriesDir, c.RegistriesConf, c.AllowNetworks = dir, "", nil }
}

// dead returns a loopback address on which no process listens.
func dead(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// counted counts the requests to a registry.
type counted struct {
	ociimage.Registry
	mu sync.Mutex
	n  int
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	c.Registry.ServeHTTP(w, r)
}

func (c *counted) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// Mirrors are asked in their order. If none of them has the image, the registry itself is asked. A
// location other than the prefix replaces the registry.
func TestMirrors(t *testing.T) {
	t.Parallel()
	dir, _, digest := layout(t, small())
	empty := t.TempDir()
	if _, err := ociimage.Write(empty, "other", other()); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		conf     string // UP, MIRROR, EMPTY, DOWN are the addresses
		upstream bool   // whether the registry itself is asked
		mirror   bool
		failed   error
	}{
		"a mirror that is down, then one that has it": {conf: "[[registry]]\nlocation = \"UP\"\ninsecure = true\n[[registry.mirror]]\nlocation = \"DOWN\"\ninsecure = true\n[[registry.mirror]]\nlocation = \"MIRROR\"\ninsecure = true\n", mirror: true},
		"a mirror that does not have it":              {conf: "[[registry]]\nlocation = \"UP\"\ninsecure = true\n[[registry.mirror]]\nlocation = \"EMPTY\"\ninsecure = true\n", upstream: true},
		"only a mirror that is down":                  {conf: "[[registry]]\nlocation = \"UP\"\ninsecure = true\n[[registry.mirror]]\nlocation = \"DOWN\"\ninsecure = true\n", upstream: true},
		"another location, without the registry":      {conf: "[[registry]]\nprefix = \"UP\"\nlocation = \"MIRROR\"\ninsecure = true\n", mirror: true},
		"another location that does not have it":      {conf: "[[registry]]\nprefix = \"UP\"\nlocation = \"EMPTY\"\ninsecure = true\n", failed: ErrNotPresent},
		"a mirror without TLS that is not allowed":    {conf: "[[registry]]\nlocation = \"UP\"\ninsecure = true\n[[registry.mirror]]\nlocation = \"MIRROR\"\n", upstream: true},
		"blocked": {conf: "[[registry]]\nlocation = \"UP\"\nblocked = true\n", failed: errors.ErrUnsupported},
	} {
		t.Run(strings.ReplaceAll(name, ",", ""), func(t *testing.T) {
			t.Parallel()
			up, mirror := &counted{Registry: ociimage.Registry{Dir: dir}}, &counted{Registry: ociimage.Registry{Dir: dir}}
			host := registry(t, up)
			conf := strings.NewReplacer("UP", host, "MIRROR", registry(t, mirror), "EMPTY", registry(t, &ociimage.Registry{Dir: empty}), "DOWN", dead(t)).Replace(tc.conf)
			settings := t.TempDir()
			writeFile(t, filepath.Join(settings, RegistriesFile), conf)
			img, err := open(t, withDir(settings)).Pull(t.Context(), PullRequest{Reference: host + "/app:v1"})
			switch {
			case tc.failed != nil:
				if err == nil || errors.Is(tc.failed, ErrNotPresent) != errors.Is(err, ErrNotPresent) {
					t.Errorf("Pull() = %v, %v, want an error", img, err)
				}
			case err != nil || img.Digest != digest || img.Reference != "docker://"+host+"/app:v1":
				t.Errorf("Pull() = %v, %v, want %s under its own name", img, err, digest)
			}
			if got := up.asked() > 0; got != tc.upstream {
				t.Errorf("the registry was asked: %t, want %t", got, tc.upstream)
			}
			if got := mirror.asked() > 0; got != tc.mirror {
				t.Errorf("the mirror was asked: %t, want %t", got, tc.mirror)
			}
		})
	}
}

// authority is a private certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(tb testing.TB) *authority {
	tb.Helper()
	a := &authority{}
	a.cert, a.key, a.pem, _ = sign(tb, nil, &x509.Certificate{
		Subject: pkix.Name{CommonName: "private authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

func sign(tb testing.TB, by *authority, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, string, string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return cert, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

// private starts a registry with TLS for 127.0.0.1 and registry.example. It requires a certificate of
// the authority from its clients.
func private(tb testing.TB, a *authority, handler http.Handler) *httptest.Server {
	tb.Helper()
	_, _, cert, key := sign(tb, a, &x509.Certificate{DNSNames: []string{"registry.example"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		tb.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	s := httptest.NewUnstartedServer(handler)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	s.Config.ErrorLog = nil
	s.StartTLS()
	tb.Cleanup(s.Close)
	return s
}

// The files of the directory are read at each pull: a private authority, a certificate for the
// registry, and credentials. A change needs no restart.
func TestSettingsForRegistriesAreReadAgain(t *testing.T) {
	t.Parallel()
	dir, _, digest := layout(t, small())
	a := newAuthority(t)
	server := private(t, a, &ociimage.Registry{Dir: dir, Username: "ann", Password: "s3cret"})
	// A mirror on loopback is not trusted because of its address.
	host := server.Listener.Addr().String()
	settings := t.TempDir()
	s := open(t, withDir(settings))
	pull := func() error {
		img, err := s.Pull(t.Context(), PullRequest{Reference: "registry.example/app:v1"})
		if err == nil && img.Digest != digest {
			t.Errorf("Pull() = %+v, want %s", img, digest)
		}
		return err
	}
	writeFile(t, filepath.Join(settings, RegistriesFile), fmt.Sprintf("[[registry]]\nprefix = \"registry.example\"\nlocation = %q\n", host))
	if err := pull(); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without the authority = %v, want an error about the certificate", err)
	}
	certs := filepath.Join(settings, CertsDir, host)
	writeFile(t, filepath.Join(certs, "ca.crt"), a.pem)
	if err := pull(); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate of the node = %v, want that the registry requires one", err)
	}
	_, _, cert, key := sign(t, a, &x509.Certificate{Subject: pkix.Name{CommonName: "node"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	writeFile(t, filepath.Join(certs, "client.cert"), cert)
	writeFile(t, filepath.Join(certs, "client.key"), key)
	if err := pull(); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("without credentials = %v, want %v", err, ErrUnauthorized)
	}
	writeFile(t, filepath.Join(settings, AuthFile), fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("ann:s3cret"))))
	if err := pull(); err != nil {
		t.Errorf("with everything = %v", err)
	}
	// A mistake is reported by the pull, and does not end the node.
	writeFile(t, filepath.Join(settings, RegistriesFile), "[[registry]]\nlocation = \"registry.example\"\n\ninsecur = true\n")
	s = open(t, withDir(settings))
	if err := pull(); err == nil || !strings.Contains(err.Error(), filepath.Join(settings, RegistriesFile)+`:4: the setting "registry.insecur" does not exist`) {
		t.Errorf("with a mistake = %v, want its line", err)
	}
}

func TestCheckRegistries(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	_, _, cert, key := sign(t, a, &x509.Certificate{})
	_, _, _, foreign := sign(t, a, &x509.Certificate{})
	for name, tc := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"nothing": {},
		"all right": {files: map[string]string{
			"registries.conf":               "unqualified-search-registries = []\nshort-name-mode = \"disabled\"\n[aliases]\n\"a\" = \"b.example/a\"\n[[registry]]\nprefix = \"*.example.com\"\nlocation = \"mirror.example\"\nmirror-by-digest-only = true\n",
			"auth.json":                     `{"auths":{"a.example":{"auth":"YTpi"}},"credHelpers":{},"HttpHeaders":{"User-Agent":"Docker"}}`,
			"certs.d/a.example:5000/ca.crt": a.pem, "certs.d/a.example:5000/client.cert": cert, "certs.d/a.example:5000/client.key": key,
			"certs.d/a.example:5000/README": "x",
		}},
		"syntax":                        {map[string]string{"registries.conf": "[[registry]]\n\nlocation = registry.example\n"}, []string{"/registries.conf:3: "}},
		"a wrong type":                  {map[string]string{"registries.conf": "[[registry]]\nlocation = \"a\"\ninsecure = \"yes\"\n"}, []string{"/registries.conf:3: "}},
		"an unknown setting":            {map[string]string{"registries.conf": "[[registry]]\nlocation = \"a.example\"\n[[registry.mirror]]\nlocation = \"b.example\"\nfallback = false\n"}, []string{`/registries.conf:5: the setting "registry.mirror.fallback" does not exist`}},
		"an unknown table":              {map[string]string{"registries.conf": "\n[[registries]]\nlocation = \"a\"\n"}, []string{`/registries.conf:2: the setting "registries" does not exist`}},
		"a URL":                         {map[string]string{"registries.conf": "[[registry]]\nlocation = \"https://a.example\"\n"}, []string{"/registries.conf:2: ", "https://a.example"}},
		"a drop-in":                     {map[string]string{"registries.conf": "", "registries.conf.d/10.conf": "x = 1\n"}, []string{`/registries.conf.d/10.conf:1: the setting "x" does not exist`}},
		"auth that is no JSON":          {map[string]string{"auth.json": "{\n\"auths\": {,\n"}, []string{"/auth.json:2: "}},
		"auth of a wrong type":          {map[string]string{"auth.json": "{\"auths\": {\"a\":\n\"s3cret\"}}"}, []string{"/auth.json:2: a value in auths must not be of the type string"}},
		"auth that is no pair":          {map[string]string{"auth.json": "{\"auths\":\n {\"a.example\": {\"auth\": \"czNjcmV0\"}}}"}, []string{`/auth.json:2: auths["a.example"].auth must be the base64 of USER:PASSWORD`}},
		"no PEM":                        {map[string]string{"certs.d/a/ca.crt": "x"}, []string{"/certs.d/a/ca.crt: it has no certificate in the PEM format"}},
		"a key without its certificate": {map[string]string{"certs.d/a/client.key": key}, []string{"/certs.d/a/client.key: its certificate client.cert does not exist"}},
		"a certificate without its key": {map[string]string{"certs.d/a/client.cert": cert}, []string{"/certs.d/a/client.cert: using it with client.key: "}},
		"a foreign key":                 {map[string]string{"certs.d/a/client.cert": cert, "certs.d/a/client.key": foreign}, []string{"/certs.d/a/client.cert: using it with client.key: "}},
		"a file between the hosts":      {map[string]string{"certs.d/ca.crt": a.pem}, []string{"/certs.d/ca.crt: must be a directory"}},
		"several":                       {map[string]string{"registries.conf": "x = 1\ny = 2\n", "auth.json": "x"}, []string{"registries.conf:1", "registries.conf:2", "auth.json:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range tc.files {
				writeFile(t, filepath.Join(dir, file), text)
			}
			err := CheckRegistries(t.Context(), Config{RegistriesDir: dir, Unpacker: []string{"/proc/self/exe", "unpack"}})
			if (err == nil) != (tc.want == nil) {
				t.Fatalf("CheckRegistries() = %v", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("CheckRegistries() = %v, want %q", err, want)
				}
			}
			if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "czNjcmV0")) {
				t.Errorf("CheckRegistries() = %v shows a password", err)
			}
		})
	}
}

// The node's proxy makes the connections, except those to hosts of NO_PROXY.
func TestPullThroughARecordingProxy(t *testing.T) {
	dir, _, digest := layout(t, small())
	a := newAuthority(t)
	server := private(t, a, &ociimage.Registry{Dir: dir})
	var mu sync.Mutex
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.Method+" "+r.Host)
		mu.Unlock()
		upstream, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = upstream.Close() }()
		client, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = client.Close() }()
		_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(upstream, client) }()
		_, _ = io.Copy(client, upstream)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		proxy.Close()
	})
	t.Setenv("HTTPS_PROXY", proxy.URL)
	t.Setenv("HTTP_PROXY", "")
	t.Setenv("NO_PROXY", "direct.invalid")
	settings := t.TempDir()
	_, _, cert, key := sign(t, a, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	for name, text := range map[string]string{"ca.crt": a.pem, "client.cert": cert, "client.key": key} {
		writeFile(t, filepath.Join(settings, CertsDir, "registry.example", name), text)
	}
	s := open(t, withDir(settings))
	img, err := s.Pull(t.Context(), PullRequest{Reference: "registry.example/app:v1"})
	if err != nil || img.Digest != digest {
		t.Errorf("Pull() = %v, %v, want %s", img, err, digest)
	}
	if _, err := s.Pull(t.Context(), PullRequest{Reference: "direct.invalid/app:v1"}); err == nil {
		t.Error("a host that does not exist was reached without the proxy")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) == 0 {
		t.Error("the proxy was not asked")
	}
	for _, request := range asked {
		if request != "CONNECT registry.example:443" {
			t.Errorf("the proxy was asked for %q", request)
		}
	}
}
