package app

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/pki"
)

// componentValidity is the lifetime of the certificates that components present to each other.
// They are in memory only and renew themselves.
const componentValidity = 30 * 24 * time.Hour

// openAuthority loads the cluster's authority from a data directory. It creates one if the
// directory belongs to no cluster yet, or if the administrator accepts new keys. Controller and
// scheduler of one machine may start at the same time, so a lock prevents them from creating
// two.
func openAuthority(dataDir string, acceptKeys bool) (*pki.Authority, error) {
	dir := filepath.Join(dataDir, "pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		if errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("%w: run as root (sudo), or choose a directory that you own with --data-dir", err)
		}
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the authority: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("locking the authority: %w", err)
	}
	if known, err := clusterid.Read(dataDir); err != nil {
		return nil, err
	} else if known != nil && !acceptKeys {
		return pki.Load(dir)
	}
	return pki.LoadOrCreate(dir)
}

// discardAuthority removes an authority that was created for a start that was then refused.
// Otherwise the next start would use it as the authority of an existing cluster.
func discardAuthority(dataDir string, authority *pki.Authority, cause error) error {
	if known, err := clusterid.Read(dataDir); err != nil || known != nil {
		return cause //nolint:nilerr // the cause says more
	}
	return errors.Join(cause, authority.Discard(filepath.Join(dataDir, "pki")))
}

// serverTLS returns the configuration of a gRPC port. It has a server certificate, and verifies
// client certificates against the cluster's authority if the client presents one. The service
// decides from the name in the certificate what a client may do.
func serverTLS(ctx context.Context, authority *pki.Authority, hosts []string, log *slog.Logger) (*tls.Config, *pki.Leaf, error) {
	leaf, err := pki.NewLeaf(ctx, pki.LeafConfig{
		Issue: func(context.Context) ([]byte, []byte, error) {
			certPEM, keyPEM, err := authority.IssueServer(hosts, componentValidity)
			// Append the authority, because joining nodes have only its hash.
			return append(certPEM, authority.CertificatePEM()...), keyPEM, err
		},
		Logger: log,
	})
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: leaf.GetCertificate,
		ClientAuth:     tls.VerifyClientCertIfGiven,
		ClientCAs:      authority.Pool(),
		NextProtos:     []string{"h2"},
	}, leaf, nil
}

// clientTLS returns the configuration with which a component presents its certificate to another
// component.
func clientTLS(ctx context.Context, authority *pki.Authority, name, serverName string, log *slog.Logger) (*tls.Config, *pki.Leaf, error) {
	leaf, err := pki.NewLeaf(ctx, pki.LeafConfig{
		Issue: func(context.Context) ([]byte, []byte, error) {
			return authority.IssueClient(pkix.Name{CommonName: name, Organization: []string{"rik:components"}}, componentValidity)
		},
		Logger: log,
	})
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		RootCAs:              authority.Pool(),
		ServerName:           serverName,
		GetClientCertificate: leaf.GetClientCertificate,
		NextProtos:           []string{"h2"},
	}, leaf, nil
}

// controllerName is the controller's name in its certificate for the scheduler.
const controllerName = rikv1alpha1.UserController

// ownHosts returns the names and addresses of this machine.
func ownHosts(extra ...string) []string {
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, name)
	}
	if addresses, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addresses {
			if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLinkLocalUnicast() {
				hosts = append(hosts, ip.IP.String())
			}
		}
	}
	for _, e := range extra {
		if e != "" {
			hosts = append(hosts, e)
		}
	}
	return hosts
}
