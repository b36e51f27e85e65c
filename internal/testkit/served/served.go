// Package served has the operations of tests on an API server of rik, in any process. apitest
// and kcpinside run one inside the test process, apiprocess and kcptest in a separate process.
package served

import (
	"crypto/x509/pkix"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rik.dev/rik/internal/pki"
)

const (
	// EnvLog shows the servers' log if it is set to a slog level such as debug.
	EnvLog = "RIK_TEST_LOG"
	// Timeout is how long tests wait for a server. It is also a good deadline for tests that
	// poll one: two busy cores under the race detector are slow.
	Timeout = 2 * time.Minute
	// adminFile is the administrator's kubeconfig in the data directory.
	adminFile = "admin.kubeconfig"
	// authorityDir is the directory of the server's authority in the data directory.
	authorityDir = "pki"
	// validity of certificates: longer than any test.
	validity = time.Hour
)

// Server is a running API server of rik, from its clients' point of view.
type Server struct {
	// URL is the server's https URL.
	URL string
	// CAPEM is the authority's certificate.
	CAPEM []byte
	// DataDir contains admin.kubeconfig, config.yaml and all other files.
	DataDir string
	// Config connects as the administrator, with the certificate of the generated kubeconfig and
	// no client-side rate limit. Copy it before changing it.
	Config *rest.Config
	// Own connects as the server's own user, which has all permissions and may impersonate every
	// user. Components inside a server use it. It uses JSON, which types defined by CRDs
	// require. Copy it before changing it.
	Own *rest.Config
	// Client is a clientset over Config.
	Client kubernetes.Interface
}

// Connect reads the files that a ready server has written to its data directory. The caller must
// set Own.
func Connect(dir string) (*Server, error) {
	config, err := clientcmd.BuildConfigFromFlags("", AdminFile(dir))
	if err != nil {
		return nil, fmt.Errorf("reading the generated kubeconfig: %w", err)
	}
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return &Server{URL: config.Host, CAPEM: config.CAData, DataDir: dir, Config: config, Client: client}, nil
}

// AdminFile returns the path of the administrator's kubeconfig in a data directory.
func AdminFile(dir string) string { return filepath.Join(dir, adminFile) }

// Namespace creates a namespace with a generated name. It does not delete it, because that takes
// longer than most tests, and the server ends soon.
func (s *Server) Namespace(tb testing.TB) string {
	tb.Helper()
	namespace, err := s.Client.CoreV1().Namespaces().Create(tb.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatalf("creating a namespace: %v", err)
	}
	return namespace.Name
}

// ConfigFor connects as a user with a certificate of the server's authority, without a
// client-side rate limit. The caller owns the result.
func (s *Server) ConfigFor(user pkix.Name) (*rest.Config, error) {
	authority, err := pki.LoadOrCreate(filepath.Join(s.DataDir, authorityDir))
	if err != nil {
		return nil, fmt.Errorf("reading the server's authority: %w", err)
	}
	certPEM, keyPEM, err := authority.IssueClient(user, validity)
	if err != nil {
		return nil, fmt.Errorf("issuing a certificate for %s: %w", user, err)
	}
	config := rest.AnonymousClientConfig(s.Config)
	config.CertData, config.KeyData, config.QPS = certPEM, keyPEM, -1
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// As is ConfigFor in a test.
func (s *Server) As(tb testing.TB, user pkix.Name) *rest.Config {
	tb.Helper()
	config, err := s.ConfigFor(user)
	if err != nil {
		tb.Fatal(err)
	}
	return config
}

// AsUser connects as a user in groups.
func (s *Server) AsUser(tb testing.TB, name string, groups ...string) *rest.Config {
	tb.Helper()
	return s.As(tb, pkix.Name{CommonName: name, Organization: groups})
}

// Kubeconfig returns a config as a file with embedded certificates.
func Kubeconfig(config *rest.Config) ([]byte, error) {
	const name = "server"
	raw, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
	if err != nil {
		return nil, fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return raw, nil
}
