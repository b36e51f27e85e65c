package app

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/app/logflag"
	"rik.dev/rik/internal/app/node"
	"rik.dev/rik/internal/app/recovery"
	"rik.dev/rik/internal/controller/network"
	"rik.dev/rik/internal/controller/nodeapi"
	"rik.dev/rik/internal/scheduler"
)

// Defaults from the published papers.
const (
	defaultDataDir = node.DefaultDataDir

	// The published clients speak plain HTTP on ports on which rik speaks TLS. rik serves the
	// plain protocols ten ports away: at 5010, 4986 and 4985 for 5000, 4996 and 4995.
	legacyAPI        = "127.0.0.1:5010"
	legacyController = "127.0.0.1:4986"
	legacyWorker     = "127.0.0.1:4985"
)

// flags holds the flags of all programs.
type flags struct {
	log            logflag.Flags
	noAgent        bool
	insecureLegacy bool
	legacyAPI      string
	schedulerURL   string
	join           joinOptions
	control        ControlPlane
	scheduler      SchedulerSettings
	node           node.Options
	restore        recovery.Flags
	backups        recovery.ScheduleFlags
	// port is the flag for the API's port; nil for a program without one.
	port *pflag.Flag
}

func newFlags() flags {
	return flags{
		legacyAPI: legacyAPI,
		control: ControlPlane{
			Port:     envInt("PORT", rikv1alpha1.PortAPI),
			NodePort: rikv1alpha1.PortNodes,
		},
		scheduler: SchedulerSettings{
			ControllerPort:          rikv1alpha1.PortScheduler,
			WorkerPort:              rikv1alpha1.PortWorkers,
			LegacyControllerAddress: legacyController,
			LegacyAddress:           legacyWorker,
		},
		node: node.DefaultOptions(),
	}
}

// server adds all flags of a server.
func (f *flags) server(s *pflag.FlagSet) {
	f.common(s)
	f.listening(s)
	f.plane(s)
	f.several(s)
	f.schedulerPorts(s)
	f.nodeTimeout(s)
	f.legacy(s)
	s.BoolVar(&f.noAgent, "no-agent", false, "do not run instances on this machine")
	f.node.AddFlags(s)
}

func (f *flags) common(s *pflag.FlagSet) {
	s.StringVar(&f.control.DataDir, "data-dir", env("DATABASE_LOCATION", defaultDataDir), "directory of the cluster's data, certificates and credentials [DATABASE_LOCATION]")
	f.log.Add(s)
}

func (f *flags) listening(s *pflag.FlagSet) {
	s.StringVar(&f.control.BindAddress, "bind-address", "", "IP address to listen on; all addresses by default")
	s.StringSliceVar(&f.control.ExtraSANs, "tls-san", nil, "additional host names and IP addresses in the server's certificates")
}

func (f *flags) plane(s *pflag.FlagSet) {
	s.IntVar(&f.control.Port, "port", f.control.Port, "port of the API (TLS) [PORT]")
	f.port = s.Lookup("port")
	s.IntVar(&f.control.NodePort, "node-port", f.control.NodePort, "port for the connections of nodes to the controller")
	s.StringVar(&f.control.AdvertiseAddress, "advertise-address", "", "IP address at which other machines reach this one; detected by default")
	s.StringVar(&f.control.ClusterName, "cluster-name", "", "name of the cluster in the generated configuration (default rik.local)")
	s.StringVar(&f.control.DatastoreEndpoint, "datastore-endpoint", "", "external datastore: https://... of an etcd cluster, sqlite://, postgres:// or mysql://; embedded etcd by default")
	s.Var(&f.control.DatastoreQuota, "datastore-quota", "maximum size of the embedded etcd's database, such as 10Gi (default 8Gi)")
	s.StringVar(&f.control.DatastoreCA, "datastore-cafile", "", "file with the certificate authority of the external datastore")
	s.StringVar(&f.control.DatastoreCert, "datastore-certfile", "", "file with the client certificate for the external datastore")
	s.StringVar(&f.control.DatastoreKey, "datastore-keyfile", "", "file with the client key for the external datastore")
	s.BoolVar(&f.control.NewCluster, "new-cluster", false, "begin a new cluster, even if the data directory or the datastore belongs to another cluster; use it for one start only")
	s.BoolVar(&f.control.AcceptKeys, "accept-keys", false, "accept the keys in the data directory, even if the cluster was used with other keys; use it for one start only")
	f.restore.Add(s)
	f.backups.Add(s)
	s.BoolVar(&f.control.LeaderElection, "leader-elect", false, "wait until no other controller of the same datastore is active; always set with a datastore outside of the data directory")
	s.DurationVar(&f.control.ReplaceAfter, "replace-after", time.Minute, "time after --node-timeout without reports of a node, after which its instances are replaced; a workload can override it")
	s.StringVar(&f.control.Network.ClusterCIDR, "cluster-cidr", network.DefaultClusterCIDR, "address range of instances (IPv4)")
	s.IntVar(&f.control.Network.NodeCIDRSize, "node-cidr-size", network.DefaultNodeCIDRSize, "prefix length of each node's pod CIDR in --cluster-cidr")
	s.StringVar(&f.control.Network.ServiceCIDR, "service-cidr", network.DefaultServiceCIDR, "address range of cluster IPs (IPv4)")
	s.StringVar(&f.control.NodePorts, "service-node-port-range", validation.DefaultNodePorts, "node ports that workloads may use (nodePort, loadBalancer): a list of ports and ranges; a port that rik itself uses must be listed as a single port")
	s.StringVar(&f.control.Network.Domain, "cluster-domain", network.DefaultDomain, "domain of the names of workloads")
	s.StringVar(&f.control.TokenFile, "node-token-file", "", "file to which the first start writes the join token, such as a file on a volume that only nodes mount (default node-token in the data directory)")
	s.DurationVar(&f.control.NodeValidity, "node-certificate-validity", nodeapi.DefaultValidity, "validity of a node's certificate; the node renews it")
}

func (f *flags) schedulerPorts(s *pflag.FlagSet) {
	s.IntVar(&f.scheduler.WorkerPort, "worker-port", f.scheduler.WorkerPort, "port for the connections of nodes to the scheduler")
	s.BoolVar(&f.scheduler.Packing, "pack", false, "fill one node after the other instead of spreading instances")
}

// nodeTimeout adds the flag for the scheduler's timeout of each node. The controller uses it for
// all nodes while it has no scheduler.
func (f *flags) nodeTimeout(s *pflag.FlagSet) {
	s.DurationVar(&f.scheduler.NodeTimeout, "node-timeout", scheduler.DefaultNodeTimeout, "time without reports of a node (or, for the controller, of the scheduler) after which the node gets no instances and its instances become Unknown")
}

func (f *flags) legacy(s *pflag.FlagSet) {
	s.BoolVar(&f.insecureLegacy, "insecure-legacy", false, "also serve the published protocols on loopback, without encryption and authentication: every local user is then an administrator")
}

// schedulerSettings returns the scheduler's settings with those that it shares with the control
// plane.
func (f *flags) schedulerSettings() SchedulerSettings {
	s := f.scheduler
	s.DataDir, s.BindAddress, s.ExtraSANs = f.control.DataDir, f.control.BindAddress, f.control.ExtraSANs
	s.InsecureLegacy = f.insecureLegacy
	return s
}

func (f *flags) controlPlane() ControlPlane {
	c := f.control
	c.NodeTimeout, c.WorkerPort = f.scheduler.NodeTimeout, f.scheduler.WorkerPort
	if f.insecureLegacy {
		c.InsecureLegacyAddress = f.legacyAPI
	}
	c.Backups, _ = f.backups.Plan() // validated before
	return c
}

// validate reports every mistake in the settings of a program before the program opens or
// creates anything. Otherwise a start with a wrong flag would leave a data directory behind.
func (f *flags) validate(parts ...func() []error) error {
	problems := f.validateCommon()
	for _, part := range parts {
		problems = append(problems, part()...)
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return nil
}

func (f *flags) validateCommon() []error {
	var problems []error
	if f.control.DataDir == "" {
		problems = append(problems, errors.New("--data-dir is empty: set it to a directory for the cluster's data, such as "+defaultDataDir))
	} else if info, err := os.Stat(f.control.DataDir); err == nil && !info.IsDir() {
		problems = append(problems, fmt.Errorf("--data-dir %s is a file: use a directory", f.control.DataDir))
	}
	if a := f.control.BindAddress; a != "" && net.ParseIP(a) == nil {
		problems = append(problems, fmt.Errorf("--bind-address %q is not an IP address", a))
	}
	return problems
}

func (f *flags) validatePlane() []error {
	var problems []error
	if text := os.Getenv("PORT"); f.port != nil && !f.port.Changed && text != "" {
		if _, err := strconv.Atoi(text); err != nil {
			problems = append(problems, fmt.Errorf("PORT=%q is not a port: set another value in the environment, or use --port", text))
		}
	}
	if err := f.restore.Validate(); err != nil {
		problems = append(problems, err)
	}
	if _, err := f.backups.Plan(); err != nil {
		problems = append(problems, err)
	}
	if _, err := f.control.Network.Parse(); err != nil {
		problems = append(problems, err)
	}
	if _, err := f.controlPlane().nodePorts(); err != nil {
		problems = append(problems, err)
	}
	problems = append(problems, notNegative("--replace-after", f.control.ReplaceAfter)...)
	if v := f.control.NodeValidity; v < nodeapi.MinValidity {
		problems = append(problems, fmt.Errorf("--node-certificate-validity %s is too short: nodes need at least %s to renew their certificates", v, nodeapi.MinValidity))
	}
	for _, f := range []struct{ flag, file string }{
		{"--datastore-cafile", f.control.DatastoreCA}, {"--datastore-certfile", f.control.DatastoreCert}, {"--datastore-keyfile", f.control.DatastoreKey},
	} {
		if _, err := os.Stat(f.file); f.file != "" && err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", f.flag, err))
		}
	}
	return append(problems, ports(map[string]int{"--port": f.control.Port, "--node-port": f.control.NodePort})...)
}

func (f *flags) validateTimeout() []error {
	return notNegative("--node-timeout", f.scheduler.NodeTimeout)
}

func (f *flags) validateScheduler() []error {
	return append(f.validateTimeout(), ports(map[string]int{"--worker-port": f.scheduler.WorkerPort, "--scheduler-port": f.scheduler.ControllerPort})...)
}

// validateTogether validates the ports of a control plane and a scheduler in one process.
func (f *flags) validateTogether() []error {
	return ports(map[string]int{
		"--port": f.control.Port, "--node-port": f.control.NodePort, "--worker-port": f.scheduler.WorkerPort,
	})
}

func notNegative(flag string, d time.Duration) []error {
	if d < 0 {
		return []error{fmt.Errorf("%s %s is negative", flag, d)}
	}
	return nil
}

// ports validates the ports of one process. With 0, the kernel chooses a port.
func ports(flags map[string]int) []error {
	var problems []error
	of := map[int]string{}
	for _, flag := range slices.Sorted(maps.Keys(flags)) {
		port := flags[flag]
		if port < 0 || port > math.MaxUint16 {
			problems = append(problems, fmt.Errorf("%s %d is not a port: use 1 to %d", flag, port, math.MaxUint16))
		}
		if other := of[port]; port != 0 && other != "" {
			problems = append(problems, fmt.Errorf("%s and %s are both %d: use a different port for each", other, flag, port))
		}
		of[port] = flag
	}
	return problems
}

// env returns an environment variable, or the fallback if it is empty.
func env(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// envInt returns an environment variable as a number, or the fallback if it is not a number.
// validate checks the range.
func envInt(name string, fallback int) int {
	if v, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return v
	}
	return fallback
}
