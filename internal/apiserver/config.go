package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	rikvalidation "rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/listener"
	"rik.dev/rik/internal/apiserver/registry/crd"
	"rik.dev/rik/internal/apiserver/registry/instance"
	"rik.dev/rik/internal/pki"
)

// Profile decides which types a server has. It is fixed at first start.
type Profile string

const (
	// ProfileCluster serves rik.dev natively and runs instances.
	ProfileCluster Profile = "cluster"
	// ProfileKCP knows clusters, and gets its workload types by negotiation.
	ProfileKCP Profile = "kcp"
)

const (
	// DefaultClusterName is what the papers call a cluster of their own.
	DefaultClusterName = "rik.local"
	// AuditOff as Config.AuditLog writes no audit log.
	AuditOff = "off"
)

// Config describes an API server. DataDir and Logger are required.
type Config struct {
	// DataDir keeps everything: objects, certificates, credentials. It is
	// locked while a server runs on it.
	DataDir string
	// BindAddress is an IP address; empty means all of them.
	BindAddress string
	// Port is the one TLS port; 0 lets the kernel choose.
	Port int
	// AdvertiseAddress is where other machines reach this one; empty takes the
	// address of the default route.
	AdvertiseAddress string
	// ExtraSANs are further host names and addresses of the server certificate.
	ExtraSANs []string
	// ClusterName is a DNS name; empty means DefaultClusterName.
	ClusterName string
	// Profile; empty means ProfileCluster.
	Profile Profile

	// DatastoreEndpoint is as datastore.Config.Endpoint: empty embeds an etcd.
	DatastoreEndpoint string
	// DatastoreCAFile, DatastoreCertFile and DatastoreKeyFile are for an
	// external datastore.
	DatastoreCAFile, DatastoreCertFile, DatastoreKeyFile string
	// DatastoreQuota is how large the embedded etcd's database may become, in bytes; 0: 8 GiB.
	DatastoreQuota int64

	// InsecureLegacyAddress, a loopback IP and port, serves the routes marked
	// Legacy over plain HTTP to whoever connects, as an administrator, for
	// clients published before there was authentication. Empty serves nothing.
	InsecureLegacyAddress string

	// NewCluster lets the server begin another cluster than the one that the data directory
	// or the datastore belongs to; AcceptKeys lets it go on with other keys than the
	// cluster was used with. Both are for one start, on an administrator's word.
	NewCluster, AcceptKeys bool

	// Connections counts those of the process; nil makes a count for this server.
	Connections *listener.Connections
	// Authority signs every certificate; nil keeps one under DataDir/pki.
	Authority *pki.Authority
	// AuditLog is a file; empty means DataDir/audit.log, AuditOff none.
	AuditLog string
	// Sessions open streams to nodes, for logs and commands of instances; nil
	// answers those requests with 503.
	Sessions instance.Sessions
	// NodePorts are the ports of nodes that workloads may have; all when zero.
	NodePorts rikvalidation.NodePorts
	// Loss guards, in ProfileKCP, CRDs that negotiation has made against changes that
	// take something from stored objects; nil guards none.
	Loss crd.Loss
	// Routes returns further handlers once the server is built and before it
	// serves; nil means none.
	Routes func(*Server) ([]Route, error)
	// Logger receives everything, Kubernetes' and etcd's messages included.
	Logger *slog.Logger
}

// withDefaults fills in what was left empty.
func (c Config) withDefaults() Config {
	if c.ClusterName == "" {
		c.ClusterName = DefaultClusterName
	}
	if c.Profile == "" {
		c.Profile = ProfileCluster
	}
	if c.Connections == nil {
		c.Connections = listener.NewConnections(listener.Budget{}, c.Logger)
	}
	if c.AuditLog == "" {
		c.AuditLog = filepath.Join(c.DataDir, "audit.log")
	}
	return c
}

// Validate reports every problem, without touching the file system.
func (c Config) Validate() error {
	c = c.withDefaults()
	var problems []error
	if c.DataDir == "" {
		problems = append(problems, errors.New("data directory is not set"))
	}
	if c.Logger == nil {
		problems = append(problems, errors.New("logger is not set"))
	} else if err := c.datastore().Validate(); err != nil {
		problems = append(problems, err)
	}
	if c.Port < 0 || c.Port > 65535 {
		problems = append(problems, fmt.Errorf("port %d is not between 0 and 65535", c.Port))
	}
	for name, address := range map[string]string{"bind": c.BindAddress, "advertise": c.AdvertiseAddress} {
		if address != "" && net.ParseIP(address) == nil {
			problems = append(problems, fmt.Errorf("%s address %q is not an IP address", name, address))
		}
	}
	if faults := validation.IsDNS1123Subdomain(c.ClusterName); len(faults) > 0 {
		problems = append(problems, fmt.Errorf("cluster name %q: %s", c.ClusterName, strings.Join(faults, "; ")))
	}
	if c.Profile != ProfileCluster && c.Profile != ProfileKCP {
		problems = append(problems, fmt.Errorf("profile %q is neither %q nor %q", c.Profile, ProfileCluster, ProfileKCP))
	}
	problems = append(problems, c.validateNames(), c.validateLegacy())
	return errors.Join(problems...)
}

func (c Config) validateNames() error {
	var problems []error
	for _, san := range c.ExtraSANs {
		if net.ParseIP(san) == nil && len(validation.IsDNS1123Subdomain(san)) > 0 && len(validation.IsWildcardDNS1123Subdomain(san)) > 0 {
			problems = append(problems, fmt.Errorf("extra name %q of the server certificate is neither a host name nor an IP address", san))
		}
	}
	return errors.Join(problems...)
}

// validateLegacy keeps the unauthenticated port away from the network.
func (c Config) validateLegacy() error {
	if c.InsecureLegacyAddress == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(c.InsecureLegacyAddress)
	if err != nil {
		return fmt.Errorf("insecure legacy address: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("insecure legacy address %q is not a loopback IP address: it gives every caller full control", c.InsecureLegacyAddress)
	}
	return nil
}

func (c Config) datastore() datastore.Config {
	dir := ""
	if c.DataDir != "" {
		dir = filepath.Join(c.DataDir, datastoreDir)
	}
	return datastore.Config{
		Endpoint: c.DatastoreEndpoint,
		CAFile:   c.DatastoreCAFile, CertFile: c.DatastoreCertFile, KeyFile: c.DatastoreKeyFile,
		Dir: dir, Quota: c.DatastoreQuota, Logger: c.Logger,
	}
}
