package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"log/slog"
	"net"
	"os"
	"time"
)

// componentValidity is the lifetime of the certificates that components present to each other.
// They are in memory only and renew themselves.
const componentValidity = 30 * 24 * time.Hour

// groupComponents is the group of the components in their client certificates.
const groupComponents = "rik:components"

// ServerTLS returns the configuration of a gRPC port of a component. It has a server certificate,
// and verifies client certificates against the authority if the client presents one. The service
// decides from the name in the certificate what a client may do. The leaf must run.
func (a *Authority) ServerTLS(ctx context.Context, hosts []string, log *slog.Logger) (*tls.Config, *Leaf, error) {
	leaf, err := NewLeaf(ctx, LeafConfig{
		Issue: func(context.Context) ([]byte, []byte, error) {
			certPEM, keyPEM, err := a.IssueServer(hosts, componentValidity)
			// Append the authority, because joining nodes have only its hash.
			return append(certPEM, a.CertificatePEM()...), keyPEM, err
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
		ClientCAs:      a.Pool(),
		NextProtos:     []string{"h2"},
	}, leaf, nil
}

// ClientTLS returns the configuration with which a component with a name connects to another
// component. The leaf must run.
func (a *Authority) ClientTLS(ctx context.Context, name, serverName string, log *slog.Logger) (*tls.Config, *Leaf, error) {
	leaf, err := NewLeaf(ctx, LeafConfig{
		Issue: func(context.Context) ([]byte, []byte, error) {
			return a.IssueClient(pkix.Name{CommonName: name, Organization: []string{groupComponents}}, componentValidity)
		},
		Logger: log,
	})
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		RootCAs:              a.Pool(),
		ServerName:           serverName,
		GetClientCertificate: leaf.GetClientCertificate,
		NextProtos:           []string{"h2"},
	}, leaf, nil
}

// OwnHosts returns the names and addresses of this machine, and the extra ones that are not empty.
// A component's server certificate is valid for them.
func OwnHosts(extra ...string) []string {
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
