package kubeconfig_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"rik.dev/rik/internal/multicluster/bounded"
	"rik.dev/rik/internal/multicluster/kubeconfig"
)

// canary stands for every secret in the tests of this package.
const canary = "c4n4ry-5ecret"

// render returns a kubeconfig with the given fields of its cluster and user.
func render(cluster, user string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: there, user: me}}]
clusters: [{name: there, cluster: {%s}}]
users: [{name: me, user: {%s}}]
`, cluster, user)
}

const (
	goodCluster = `server: "https://192.0.2.1:6443"`
	goodUser    = `token: ` + canary
)

func TestParseTakesWhatIsWhole(t *testing.T) {
	t.Parallel()
	certificate, key := keyPair(t)
	tests := map[string]struct {
		cluster, user string
		check         func(*rest.Config) bool
	}{
		"token":              {goodCluster, goodUser, func(c *rest.Config) bool { return c.BearerToken == canary && c.Host == "https://192.0.2.1:6443" }},
		"password":           {goodCluster, `username: ada, password: ` + canary, func(c *rest.Config) bool { return c.Password == canary }},
		"client certificate": {goodCluster, certificate + ", " + key, func(c *rest.Config) bool { return len(c.KeyData) > 0 }},
		"a path in the URL":  {`server: "https://front.example/clusters/a"`, goodUser, func(c *rest.Config) bool { return c.Host == "https://front.example/clusters/a" }},
		"server name":        {goodCluster + `, tls-server-name: api.example`, goodUser, func(c *rest.Config) bool { return c.ServerName == "api.example" }},
		"impersonation":      {goodCluster, goodUser + `, as: bob, as-groups: [staff]`, func(c *rest.Config) bool { return c.Impersonate.UserName == "bob" && len(c.Impersonate.Groups) == 1 }},
		"plain on loopback":  {`server: "http://127.0.0.1:8080"`, goodUser, func(c *rest.Config) bool { return c.Host == "http://127.0.0.1:8080" }},
		"plain on loopback 6": {`server: "http://[::1]:8080", insecure-skip-tls-verify: true`, goodUser, func(c *rest.Config) bool {
			return c.Insecure
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, err := kubeconfig.Parse(render(tc.cluster, tc.user))
			if err != nil {
				t.Fatalf("Parse = %v", err)
			}
			if !tc.check(config) {
				t.Errorf("Parse = %v, which lacks what was given", config)
			}
			if config.ExecProvider != nil || config.AuthProvider != nil || config.BearerTokenFile != "" || config.CAFile != "" || config.CertFile != "" || config.KeyFile != "" {
				t.Errorf("Parse = %v, which runs or reads something", config)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	certificate, key := keyPair(t)
	_, otherKey := keyPair(t)
	tests := map[string]struct {
		data []byte
		want error
	}{
		"nothing":         {nil, kubeconfig.ErrEmpty},
		"white space":     {[]byte(" \n"), kubeconfig.ErrEmpty},
		"too much":        {append(render(goodCluster, goodUser), make([]byte, kubeconfig.MaxBytes)...), kubeconfig.ErrTooLarge},
		"broken YAML":     {[]byte("token: " + canary + ": [" + canary), kubeconfig.ErrForm},
		"a list":          {[]byte("[" + canary + "]"), kubeconfig.ErrForm},
		"another kind":    {[]byte("apiVersion: v1\nkind: " + canary), kubeconfig.ErrForm},
		"a wrong type":    {[]byte("apiVersion: v1\nkind: Config\nusers: " + canary), kubeconfig.ErrForm},
		"no base64":       {render(goodCluster, `client-certificate-data: "`+canary+`!"`), kubeconfig.ErrForm},
		"no context":      {[]byte("apiVersion: v1\nkind: Config\n"), kubeconfig.ErrContext},
		"context gone":    {[]byte("apiVersion: v1\nkind: Config\ncurrent-context: " + canary), kubeconfig.ErrContext},
		"cluster gone":    {[]byte("apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: " + canary + "}}]"), kubeconfig.ErrContext},
		"exec":            {render(goodCluster, `exec: {apiVersion: client.authentication.k8s.io/v1, command: `+canary+`, interactiveMode: Never}`), kubeconfig.ErrProgram},
		"exec and token":  {render(goodCluster, goodUser+`, exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never}`), kubeconfig.ErrProgram},
		"auth provider":   {render(goodCluster, `auth-provider: {name: oidc, config: {id-token: `+canary+`}}`), kubeconfig.ErrProgram},
		"token file":      {render(goodCluster, `tokenFile: /run/`+canary), kubeconfig.ErrPath},
		"token file too":  {render(goodCluster, goodUser+`, tokenFile: /run/secrets/token`), kubeconfig.ErrPath},
		"key file":        {render(goodCluster, certificate+`, client-key: /etc/`+canary), kubeconfig.ErrPath},
		"cert file":       {render(goodCluster, key+`, client-certificate: `+canary), kubeconfig.ErrPath},
		"CA file":         {render(goodCluster+`, certificate-authority: /etc/`+canary, goodUser), kubeconfig.ErrPath},
		"proxy":           {render(goodCluster+`, proxy-url: "http://u:`+canary+`@192.0.2.9"`, goodUser), kubeconfig.ErrProxy},
		"no server":       {render(``, goodUser), kubeconfig.ErrServer},
		"a bare name":     {render(`server: api.example`, goodUser), kubeconfig.ErrServer},
		"a file URL":      {render(`server: "file:///etc/`+canary+`"`, goodUser), kubeconfig.ErrServer},
		"user in the URL": {render(`server: "https://u:`+canary+`@192.0.2.1"`, goodUser), kubeconfig.ErrServer},
		"a query":         {render(`server: "https://192.0.2.1/?`+canary+`"`, goodUser), kubeconfig.ErrServer},
		"broken URL":      {render(`server: "https://192.0.2.1:`+canary+`"`, goodUser), kubeconfig.ErrServer},
		"plain":           {render(`server: "http://192.0.2.1:8080"`, goodUser), kubeconfig.ErrPlain},
		"plain, a name":   {render(`server: "http://localhost.example"`, goodUser), kubeconfig.ErrPlain},
		"unverified":      {render(goodCluster+`, insecure-skip-tls-verify: true`, goodUser), kubeconfig.ErrInsecure},
		"no CA in CA":     {render(goodCluster+`, certificate-authority-data: `+base64.StdEncoding.EncodeToString([]byte(canary)), goodUser), kubeconfig.ErrTLS},
		"other key":       {render(goodCluster, certificate+", "+otherKey), kubeconfig.ErrTLS},
		"no key":          {render(goodCluster, certificate), kubeconfig.ErrTLS},
		"nobody":          {render(goodCluster, ``), kubeconfig.ErrIdentity},
		"two identities":  {render(goodCluster, goodUser+`, username: ada, password: x`), kubeconfig.ErrIdentity},
		"as without whom": {render(goodCluster, goodUser+`, as-groups: [`+canary+`]`), kubeconfig.ErrIdentity},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, err := kubeconfig.Parse(tc.data)
			if !errors.Is(err, tc.want) || config != nil {
				t.Fatalf("Parse = %v, %v, want %v", config, err, tc.want)
			}
			if strings.Contains(err.Error(), canary) {
				t.Errorf("the error %q holds what was read", err)
			}
		})
	}
}

// Errors contain no part of the input, whatever is wrong with it.
func TestParseKeepsSecrets(t *testing.T) {
	t.Parallel()
	whole := render(goodCluster, goodUser+`, client-key-data: `+canary)
	rapid.Check(t, func(t *rapid.T) {
		data := append([]byte(nil), whole...)
		for range rapid.IntRange(1, 6).Draw(t, "edits") {
			at := rapid.IntRange(0, len(data)-1).Draw(t, "at")
			data[at] = rapid.SampledFrom([]byte("\n\t :{}[],\"'&*!|>%@`a0\x00\xff")).Draw(t, "byte")
		}
		if _, err := kubeconfig.Parse(data); err != nil && strings.Contains(err.Error(), canary[:5]) {
			t.Fatalf("the error %q holds what was read", err)
		}
	})
}

// A server cannot redirect the credentials to another host.
func TestParsedClientStaysWithItsServer(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(other.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/near":
			http.Redirect(w, r, "/here", http.StatusFound)
		default:
			_, _ = fmt.Fprint(w, r.Header.Get("Authorization"))
		}
	}))
	t.Cleanup(server.Close)
	config, err := kubeconfig.Parse(render(`server: "`+server.URL+`"`, goodUser))
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	if answer, err := client.Get(server.URL + "/away"); err == nil {
		_ = answer.Body.Close()
		t.Error("a redirect to another host was followed")
	} else if strings.Contains(err.Error(), canary) {
		t.Errorf("the error %q holds the token", err)
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("the other host was asked %d times", n)
	}
	answer, err := client.Get(server.URL + "/near")
	if err != nil {
		t.Fatalf("a redirect on the same host: %v", err)
	}
	_ = answer.Body.Close()
}

// An endless response does not use all memory.
func TestParsedClientBoundsAnswers(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for part := make([]byte, 1<<20); ; {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	config, err := kubeconfig.Parse(render(`server: "`+server.URL+`"`, goodUser))
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	answer, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if n, err := io.Copy(io.Discard, answer.Body); !errors.Is(err, bounded.ErrTooLarge) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// keyPair returns a certificate and its key, as fields of a kubeconfig's user.
func keyPair(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "me"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return "client-certificate-data: " + encode("CERTIFICATE", der), "client-key-data: " + encode("EC PRIVATE KEY", secret)
}
