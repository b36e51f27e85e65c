package kube

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/testkit/served"
)

// Files in a cluster's directory.
const (
	caCert           = "ca.crt"
	caKey            = "ca.key"
	serverCert       = "server.crt"
	serverKey        = "server.key"
	accountKey       = "service-accounts.key"
	directKubeconfig = "direct.kubeconfig"
)

// lifetime of the certificates: longer than any test.
const lifetime = 24 * time.Hour

// credentials holds the certificates of a cluster and of its administrator.
type credentials struct {
	dir string
	// url is for clients, direct for the cluster's own parts.
	url, direct   string
	ca, cert, key []byte
}

func newCredentials(dir, url, direct string) (*credentials, error) {
	authority, err := pki.LoadOrCreate(dir)
	if err != nil {
		return nil, err
	}
	c := &credentials{dir: dir, url: url, direct: direct, ca: authority.CertificatePEM()}
	c.cert, c.key, err = authority.IssueClient(pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, lifetime)
	if err != nil {
		return nil, err
	}
	server, key, err := authority.IssueServer([]string{"127.0.0.1", "localhost", "kubernetes.default.svc"}, lifetime)
	if err != nil {
		return nil, err
	}
	accounts, err := newAccountKey()
	if err != nil {
		return nil, err
	}
	return c, errors.Join(
		os.WriteFile(c.path(serverCert), server, 0o600),
		os.WriteFile(c.path(serverKey), key, 0o600),
		os.WriteFile(c.path(accountKey), accounts, 0o600),
		os.WriteFile(c.path(directKubeconfig), c.kubeconfig(direct), 0o600),
	)
}

// newAccountKey creates the key that signs the tokens of service accounts.
func newAccountKey() ([]byte, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("generating the key of service accounts: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), nil
}

func (c *credentials) path(file string) string { return filepath.Join(c.dir, file) }

func (c *credentials) directRest() *rest.Config { return c.rest(c.direct) }

func (c *credentials) rest(url string) *rest.Config {
	return &rest.Config{
		Host:            url,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca, CertData: c.cert, KeyData: c.key},
		QPS:             -1,
		WarningHandler:  rest.NoWarnings{},
	}
}

func (c *credentials) kubeconfig(url string) []byte {
	raw, err := served.Kubeconfig(c.rest(url))
	if err != nil {
		panic(fmt.Sprintf("programmer error: a kubeconfig that cannot be written: %v", err))
	}
	return raw
}
