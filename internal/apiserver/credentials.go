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
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/pki"
)

// Files under DataDir/pki and DataDir. All have mode 0600.
const (
	pkiDir                = "pki"
	clientCAFile          = "pki/client-ca.crt"
	serverCertFile        = "pki/server.crt"
	serverKeyFile         = "pki/server.key"
	adminCertFile         = "pki/admin.crt"
	adminKeyFile          = "pki/admin.key"
	serviceAccountKeyFile = "pki/service-account.key"
	encryptionFile        = "encryption.yaml"
	datastoreDir          = "datastore"
	// NodeTokenFile is written by the caller, into the data directory. It has a join token for the
	// machine's administrator.
	NodeTokenFile = "node-token"
	// KubeconfigFile is the administrator's kubeconfig in the data directory.
	KubeconfigFile = "admin.kubeconfig"
	// RIKConfigFile is the administrator's RIKCONFIG in the data directory.
	RIKConfigFile = "config.yaml"
)

// Shared are the files that all servers of a cluster have in common, relative to the data
// directory. They are the cluster's keys.
func Shared() []string {
	return []string{
		pkiDir + "/" + pki.CertificateFile, pkiDir + "/" + pki.KeyFile, serviceAccountKeyFile, encryptionFile, profileFile, clusterid.FileName,
	}
}

// leafValidity is short, so that a stolen file does not stay useful. It is long enough that a
// server that was off for some weeks still has a valid certificate.
const leafValidity = 90 * 24 * time.Hour

// adminSubject is the machine's administrator.
var adminSubject = pkix.Name{CommonName: "rik:admin", Organization: []string{"system:masters"}}

// credentials are the keys and certificates that the first start creates and later renews.
type credentials struct {
	dir       string
	authority *pki.Authority
	// mayCreate means that the cluster is new, or the administrator accepts new keys.
	mayCreate bool
	server    *pki.Leaf
	admin     *pki.Leaf

	writing sync.Mutex // serializes writeAccess
	// servers is guarded by writing. It is empty for a single server.
	servers []NamedURL
}

func (c *credentials) path(name string) string { return filepath.Join(c.dir, name) }

// openCredentials loads the cluster's keys. It creates missing ones only if mayCreate is set,
// because the keys with which a cluster was created cannot be replaced.
func openCredentials(cfg Config, mayCreate bool) (*credentials, error) {
	c := &credentials{dir: cfg.DataDir, authority: cfg.Authority, mayCreate: mayCreate}
	if err := os.MkdirAll(c.path(pkiDir), 0o700); err != nil {
		return nil, fmt.Errorf("creating the directory of certificates: %w", err)
	}
	if err := c.makePrivate(cfg.Logger); err != nil {
		return nil, err
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
	if warning := c.authority.Warning(time.Now()); warning != "" {
		cfg.Logger.Warn(warning, "file", filepath.Join(c.path(pkiDir), pki.CertificateFile))
	}
	return c, errors.Join(
		c.ensure(serviceAccountKeyFile, newServiceAccountKey, "the tokens of all service accounts are signed with it"),
		c.ensure(encryptionFile, newEncryptionConfig, "without it no stored Secret can be read"),
	)
}

// makePrivate removes the permissions of other users from the directories and files that only
// the server uses. It does not change a key that others could read: ensure and package pki
// refuse it.
func (c *credentials) makePrivate(logger *slog.Logger) error {
	for _, dir := range []string{c.path(pkiDir), c.path(datastoreDir)} {
		wasOpen, err := pki.PrivateDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if wasOpen {
			logger.Warn("other users could change the files in a directory of the server; its mode is now 0700. Check that its files were not changed", "directory", dir)
		}
	}
	for _, name := range []string{KubeconfigFile, RIKConfigFile, NodeTokenFile} {
		info, err := os.Stat(c.path(name))
		if err != nil || info.Mode().Perm()&0o077 == 0 {
			continue // a missing file is created later
		}
		logger.Warn("other users could read credentials; the file's mode is now 0600. Replace the credentials if another user may have read them", "file", c.path(name), "mode", info.Mode().Perm().String())
		if err := os.Chmod(c.path(name), 0o600); err != nil {
			return fmt.Errorf("%s must be private: %w", c.path(name), err)
		}
	}
	return nil
}

// openLeaves writes the certificates that the authority signs. It also writes the authority's
// certificate for clients, because the authority may belong to the caller.
func (c *credentials) openLeaves(ctx context.Context, cfg Config, hosts []string) error {
	if err := atomicfile.Write(c.path(clientCAFile), c.authority.CertificatePEM()); err != nil {
		return err
	}
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

// signed refuses a leaf of another authority, such as after a restored backup.
func (c *credentials) signed(leaf *x509.Certificate) error {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: c.authority.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

func covers(leaf *x509.Certificate, hosts []string) error {
	for _, host := range hosts {
		// VerifyHostname does not accept a wildcard as a host, so compare it as text.
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

// ensure creates a secret file once. The file is never replaced, because tokens and stored
// secrets depend on it. The error for a missing file contains the consequence.
func (c *credentials) ensure(name string, content func() ([]byte, error), consequence string) error {
	path := c.path(name)
	_, err := os.Stat(path)
	if err == nil {
		return pki.RefuseExposed(path)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking up %s: %w", path, err)
	}
	if !c.mayCreate {
		return clusterid.Missing(path, consequence)
	}
	fresh, err := content()
	if err != nil {
		return fmt.Errorf("creating %s: %w", path, err)
	}
	return atomicfile.Write(path, fresh)
}

// newServiceAccountKey returns a key in SEC 1 form. Kubernetes reads that form both as a
// private key and as the public key in it.
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

// encryptionTemplate encrypts secrets with XSalsa20 and Poly1305. The identity provider at the
// end reads secrets that were stored before there was a key.
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
	key := make([]byte, 32) // the key size of secretbox
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, encryptionTemplate, base64.StdEncoding.EncodeToString(key)), nil
}
