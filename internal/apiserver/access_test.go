package apiserver_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/testkit/apitest"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/version"
)

// anonymousClient trusts the server's certificate and has no credential.
func anonymousClient(t *testing.T, s *apitest.Server) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.CAPEM) {
		t.Fatal("the authority's certificate is not PEM")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: apitest.Timeout}
}

func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatalf("GET %s: %v", url, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("reading the answer to GET %s: %v", url, err)
	}
	return response.StatusCode, string(body)
}

func TestAnonymousGets401(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	client := anonymousClient(t, s)
	want := map[string]int{
		"/healthz": 200, "/readyz": 200, "/livez": 200, "/version": 200,
		"/": 401, "/api": 401, "/apis": 401, "/api/v1/namespaces": 401, "/metrics": 401,
		"/openapi/v2": 401, "/openapi/v3": 401, "/apis/rik.dev/v1alpha1/nodes": 401,
		"/readyz/etcd": 401, "/healthz/../api": 401, "/nothing": 401, "/api/v0/workloads.list": 401,
	}
	for path, status := range want {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			if got, body := get(t, client, s.URL+path); got != status {
				t.Errorf("GET %s = %d %.200s, want %d", path, got, body, status)
			}
		})
	}
}

// TestUserWithoutRoles: a user with a certificate and without a role may use discovery, and may
// read no objects. Nodes are such users.
func TestUserWithoutRoles(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	config := clientOf(t, s, "rik:node:n1", "rik:nodes")
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Discovery().ServerGroups(); err != nil {
		t.Errorf("discovery: %v", err)
	}
	if _, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing secrets = %v, want forbidden", err)
	}
}

func TestServiceAccountToken(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	namespace := s.Namespace(t)
	var token string
	poll.Until(t, apitest.Timeout, "the default service account gets a token", func(ctx context.Context) error {
		answer, err := s.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err == nil {
			token = answer.Status.Token
		}
		return err
	})
	config := rest.AnonymousClientConfig(s.Config)
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	want := "system:serviceaccount:" + namespace + ":default"
	poll.Until(t, apitest.Timeout, "the token is "+want, func(ctx context.Context) error {
		self, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err == nil && self.Status.UserInfo.Username != want {
			err = fmt.Errorf("it is %q", self.Status.UserInfo.Username)
		}
		return err
	})
}

func TestForeignCertificateIsRefused(t *testing.T) {
	t.Parallel()
	s, other := apitest.Shared(t), newAuthority(t)
	certPEM, keyPEM, err := other.IssueClient(pkix.Name{CommonName: "root", Organization: []string{"system:masters"}}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.Config)
	config.CertData, config.KeyData = certPEM, keyPEM
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("listing with another authority's certificate = %v, want unauthorized", err)
	}
}

func TestPlainHTTPNamesTheURL(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, request string }{
		{"get", "GET /api/v1/namespaces HTTP/1.1\r\nHost: " + u.Host + "\r\n\r\n"},
		{"post", "POST /api/v1/namespaces HTTP/1.1\r\nHost: " + u.Host + "\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000)},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", u.Host)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(apitest.Timeout)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, tc.request); err != nil {
				t.Fatal(err)
			}
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("reading the answer: %v", err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if want := s.URL + "/api/v1/namespaces"; response.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), want) {
				t.Errorf("plain http got %d %q, want 400 and %s", response.StatusCode, body, want)
			}
		})
	}
}

func TestSilentClientDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if status, _ := get(t, anonymousClient(t, s), s.URL+"/livez"); status != 200 {
		t.Errorf("GET /livez while another connection is silent = %d", status)
	}
}

func TestFirstStartFiles(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	for _, name := range []string{
		"pki/ca.crt", "pki/ca.key", "pki/server.crt", "pki/server.key", "pki/admin.crt", "pki/admin.key",
		"pki/service-account.key", "encryption.yaml", "admin.kubeconfig", "config.yaml", "profile", "lock",
	} {
		info, err := os.Stat(filepath.Join(s.DataDir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("mode of %s = %04o, want 0600", name, info.Mode().Perm())
		}
	}
	assertPrivate(t, filepath.Join(s.DataDir, "datastore"))
}

// assertPrivate checks that other users cannot access the files of a running server. The mode
// of the directory protects files for which etcd sets a wider mode.
func assertPrivate(t *testing.T, dir string) {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode(); got.Perm() != 0o700 || got.Type() != fs.ModeDir {
		t.Errorf("mode of %s = %s, want a directory with 0700", dir, got)
	}
}

func TestRIKConfigWorks(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	content, err := os.ReadFile(filepath.Join(s.DataDir, apiserver.RIKConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	var config apiserver.RIKConfig
	if err := yaml.UnmarshalStrict(content, &config); err != nil {
		t.Fatalf("reading %s: %v", apiserver.RIKConfigFile, err)
	}
	if config.Cluster.Name != apiserver.DefaultClusterName || config.Cluster.Server != s.URL {
		t.Errorf("cluster is %q at %q, want %q at %q", config.Cluster.Name, config.Cluster.Server, apiserver.DefaultClusterName, s.URL)
	}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: config.Cluster.Server, TLSClientConfig: rest.TLSClientConfig{
		CAData: decode(t, config.Cluster.CertificateAuthority), CertData: decode(t, config.Cluster.ClientCertificate), KeyData: decode(t, config.Cluster.ClientKey),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Errorf("using the RIKCONFIG: %v", err)
	}
}

func decode(t *testing.T, s string) []byte {
	t.Helper()
	out, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestServerCertificateNames(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.CAPEM)
	for _, host := range []string{"localhost", "127.0.0.1", "::1", name, "kubernetes.default.svc", apiserver.DefaultClusterName} {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(s.URL, "https://"), &tls.Config{RootCAs: roots, ServerName: host})
		if err != nil {
			t.Errorf("connecting as %s: %v", host, err)
			continue
		}
		conn.Close()
	}
}

// TestVersion: clients of Kubernetes compare the version with their own and stop if it is not a
// version.
func TestVersion(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	client, err := kubernetes.NewForConfig(clientOf(t, s, "ann", "rik:nodes"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := utilversion.ParseSemantic(info.GitVersion); err != nil || info.GitVersion != version.Served() || info.Major != "1" {
		t.Errorf("version = %+v (%v), want %s", info, err, version.Served())
	}
}
