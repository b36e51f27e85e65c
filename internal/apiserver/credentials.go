package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/pki"
)

// The files under DataDir/pki and DataDir. All have mode 0600.
const (
	pkiDir                = "pki"
	clientCAFile          = "pki/client-ca.crt"
	serverCertFile        = "pki/server.crt"
	serverKeyFile         = "pki/server.key"
	adminCertFile         = "pki/admin.crt"
	adminKeyFile          = "pki/admin.key"
	serviceAccountKeyFile = "pki/service-account.key"
	encryptionFile        = "encryption.yaml"
	// KubeconfigFile is the administrator's kubeconfig in the data directory.
	KubeconfigFile = "admin.kubeconfig"
	// RIKConfigFile is the administrator's RIKCONFIG in the data directory.
	RIKConfigFile = "config.yaml"
)

// leafValidity is short enough that a stolen file does not stay useful, and
// long enough that a server switched off over the holidays comes back with it.
const leafValidity = 90 * 24 * time.Hour

// adminSubject is the machine's administrator.
var adminSubject = pkix.Name{CommonName: "rik:admin", Organization: []string{"system:masters"}}

// credentials are what the first start makes, and keeps fresh afterwards.
type credentials struct {
	dir       string
	authority *pki.Authority
	// mayCreate: the cluster is new, or the administrator accepts new keys.
	mayCreate bool
	server    *pki.Leaf
	admin     *pki.Leaf
}

func (c *credentials) path(name string) string { return filepath.Join(c.dir, name) }

// openCredentials loads everything that does not depend on the port. What is missing it makes
// only if it may: what a cluster was made with is not made again.
func openCredentials(ctx context.Context, cfg Config, hosts []string, mayCreate bool) (*credentials, error) {
	c := &credentials{dir: cfg.DataDir, authority: cfg.Authority, mayCreate: mayCreate}
	if err := os.MkdirAll(c.path(pkiDir), 0o700); err != nil {
		return nil, fmt.Errorf("creating the directory of certificates: %w", err)
	}
	if c.authority == nil {
		load := pki.Load
		if mayCreate {
			load = pki.LoadOrCreate
		}
		authority, err := load(c.path(pkiDir))
		if err != nil {
			return nil, err
		}
		c.authority = authority
	}
	// Written again at every start: the authority may be the caller's.
	if err := pki.WriteFile(c.path(clientCAFile), c.authority.CertificatePEM()); err != nil {
		return nil, err
	}
	if err := errors.Join(
		c.ensure(serviceAccountKeyFile, newServiceAccountKey, "every service account's token was signed with it"),
		c.ensure(encryptionFile, newEncryptionConfig, "without it no stored Secret can be read"),
	); err != nil {
		return nil, err
	}
	return c, c.openLeaves(ctx, cfg, hosts)
}

func (c *credentials) openLeaves(ctx context.Context, cfg Config, hosts []string) error {
	var err error
	c.server, err = pki.NewLeaf(ctx, pki.LeafConfig{
		Issue: func(context.Context) ([]byte, []byte, error) {
			return c.authority.IssueServer(hosts, leafValidity)
		},
		CertFile: c.path(serverCertFile), KeyFile: c.path(serverKeyFile),
		Accept: func(leaf *x509.Certificate) error { return errors.Join(c.signed(leaf), covers(leaf, hosts)) },
		Logger: cfg.Logger,
	})
	if err != nil {
		return fmt.Errorf("preparing the server's certificate: %w", err)
	}
	c.admin, err = pki.NewLeaf(ctx, pki.LeafConfig{
		Issue: func(context.Context) ([]byte, []byte, error) {
			return c.authority.IssueClient(adminSubject, leafValidity)
		},
		CertFile: c.path(adminCertFile), KeyFile: c.path(adminKeyFile),
		Accept: c.signed,
		Logger: cfg.Logger,
	})
	if err != nil {
		return fmt.Errorf("preparing the administrator's certificate: %w", err)
	}
	return nil
}

// signed refuses a leaf of another authority, as after a restored backup.
func (c *credentials) signed(leaf *x509.Certificate) error {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: c.authority.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

func covers(leaf *x509.Certificate, hosts []string) error {
	for _, host := range hosts {
		// A wildcard verifies nothing by itself; compare it as text.
		if err := leaf.VerifyHostname(host); err != nil && !contains(leaf.DNSNames, host) {
			return err
		}
	}
	return nil
}

func contains(list []string, s string) bool {
	for _, item := range list {
		if item == s {
			return true
		}
	}
	return false
}

// ensure makes a secret file once. It is never replaced: tokens and stored
// secrets depend on it, and the consequence of its loss is part of the error.
func (c *credentials) ensure(name string, content func() ([]byte, error), consequence string) error {
	path := c.path(name)
	_, err := os.Stat(path)
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking for %s: %w", path, err)
	}
	if !c.mayCreate {
		return clusterid.Missing(path, consequence)
	}
	fresh, err := content()
	if err != nil {
		return fmt.Errorf("making %s: %w", path, err)
	}
	return pki.WriteFile(path, fresh)
}

// newServiceAccountKey is in SEC 1 form, the one that Kubernetes reads both as
// a private key and as the public key in it.
func newServiceAccountKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// encryptionTemplate encrypts secrets with XSalsa20 and Poly1305. The identity
// provider at the end reads what was stored before there was a key.
const encryptionTemplate = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources:
  - secrets
  providers:
  - secretbox:
      keys:
      - name: first
        secret: %s
  - identity: {}
`

func newEncryptionConfig() ([]byte, error) {
	key := make([]byte, 32) // the size that secretbox asks for
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, encryptionTemplate, base64.StdEncoding.EncodeToString(key)), nil
}
