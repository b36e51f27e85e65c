package apiserver

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/validation"

	rikvalidation "rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/datastore/etcd"
	"rik.dev/rik/internal/apiserver/listener"
	"rik.dev/rik/internal/apiserver/registry/crd"
	"rik.dev/rik/internal/apiserver/registry/instance"
	"rik.dev/rik/internal/pki"
)

// Profile decides which types a server has. The first start fixes it.
type Profile string

const (
	// ProfileCluster serves rik.dev natively and runs instances.
	ProfileCluster Profile = "cluster"
	// ProfileKCP has Cluster objects, and gets its workload types by negotiation.
	ProfileKCP Profile = "kcp"
)

const (
	// DefaultClusterName is the name of a cluster in the RIK papers.
	DefaultClusterName = "rik.local"
	// AuditOff is the value of Config.AuditLog that disables the audit log.
	AuditOff = "off"
)

// Config describes an API server. DataDir and Logger are required.
type Config struct {
	// DataDir holds all files: objects, certificates, credentials. It is locked while a server
	// runs on it.
	DataDir string
	// BindAddress is an IP address. Empty means all addresses.
	BindAddress string
	// Port is the only TLS port. With 0 the kernel chooses one.
	Port int
	// AdvertiseAddress is the address at which other machines reach this one. Empty means the
	// address of the default route.
	AdvertiseAddress string
	// ExtraSANs are additional host names and addresses of the server certificate.
	ExtraSANs []string
	// ClusterName is a DNS name. Empty means DefaultClusterName.
	ClusterName string
	// Profile is the profile of the server. Empty means ProfileCluster.
	Profile Profile

	// DatastoreEndpoint is the same as datastore.Config.Endpoint. Empty embeds an etcd.
	DatastoreEndpoint string
	// DatastoreCAFile, DatastoreCertFile and DatastoreKeyFile are for an external datastore.
	DatastoreCAFile, DatastoreCertFile, DatastoreKeyFile string
	// Metrics registers the metrics of the datastore. It is optional.
	Metrics prometheus.Registerer
	// DatastoreQuota is the maximum size of the embedded etcd's database in bytes. Zero means 8
	// GiB.
	DatastoreQuota int64
	// Several allows other servers to join the embedded etcd, or makes this server join others. If it
	// is nil, the server stays alone.
	Several *etcd.Several

	// InsecureLegacyAddress is a loopback IP and port. It serves the routes marked Legacy over
	// plain HTTP, and treats every client as an administrator. It is for clients published before
	// there was authentication. Empty disables it.
	InsecureLegacyAddress string

	// NewCluster allows the server to start another cluster than the one to which the data
	// directory or the datastore belongs. AcceptKeys allows it to continue with other keys than
	// the cluster was used with. An administrator sets both, for one start.
	NewCluster, AcceptKeys bool

	// Connections counts the connections of the process. If it is nil, the server creates its own
	// count.
	Connections *listener.Connections
	// Authority signs every certificate. If it is nil, the server creates one under DataDir/pki.
	Authority *pki.Authority
	// AuditLog is a file. Empty means DataDir/audit.log. AuditOff disables it.
	AuditLog string
	// Sessions open streams to nodes, for logs and commands of instances. If it is nil, such
	// requests are answered with 503.
	Sessions instance.Sessions
	// NodePorts is the range of node ports that workloads may use. Zero means all.
	NodePorts rikvalidation.NodePorts
	// Loss protects CRDs from negotiation, in ProfileKCP, against changes that would remove
	// fields from stored objects. If it is nil, no CRD is protected.
	Loss crd.Loss
	// Routes returns additional handlers. It is called when the server is built and before it
	// serves. It is optional.
	Routes func(*Server) ([]Route, error)
	// Step is called with the name of each step of the start that may take long. It is optional.
	Step func(name string)
	// Logger logs all messages, including those of Kubernetes and etcd.
	Logger *slog.Logger
}

// withDefaults replaces empty fields with their defaults.
func (c Config) withDefaults() Config {
	c.ClusterName = cmp.Or(c.ClusterName, DefaultClusterName)
	c.Profile = cmp.Or(c.Profile, ProfileCluster)
	if c.Connections == nil {
		c.Connections = listener.NewConnections(listener.Budget{}, c.Logger)
	}
	if c.Step == nil {
		c.Step = func(string) {}
	}
	if c.AuditLog == "" {
		c.AuditLog = filepath.Join(c.DataDir, "audit.log")
	}
	return c
}

// Validate reports every problem, without access to the file system.
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
		problems = append(problems, fmt.Errorf("profile %q is not %q or %q", c.Profile, ProfileCluster, ProfileKCP))
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

// validateLegacy refuses an unauthenticated port that other machines can reach.
func (c Config) validateLegacy() error {
	if c.InsecureLegacyAddress == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(c.InsecureLegacyAddress)
	if err != nil {
		return fmt.Errorf("insecure legacy address: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("insecure legacy address %q is not a loopback IP address, and the port gives every caller full control", c.InsecureLegacyAddress)
	}
	return nil
}

// DatastoreDir returns the directory of an embedded datastore in a data directory.
func DatastoreDir(dataDir string) string { return filepath.Join(dataDir, datastoreDir) }

func (c Config) datastore() datastore.Config {
	dir := ""
	if c.DataDir != "" {
		dir = DatastoreDir(c.DataDir)
	}
	return datastore.Config{
		Endpoint: c.DatastoreEndpoint,
		CAFile:   c.DatastoreCAFile, CertFile: c.DatastoreCertFile, KeyFile: c.DatastoreKeyFile,
		Dir: dir, Quota: c.DatastoreQuota, Several: c.Several, Logger: c.Logger,
	}
}
