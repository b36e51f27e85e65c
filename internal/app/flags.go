package app

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/app/node"
	"rik.dev/rik/internal/controller/network"
	"rik.dev/rik/internal/scheduler"
)

// Defaults that the papers give.
const (
	defaultDataDir = "/var/lib/rik/data/"

	// The published clients expect plain ports where ours speak TLS: theirs are
	// shifted by ten.
	legacyAPI        = "127.0.0.1:5010"
	legacyController = "127.0.0.1:4986"
	legacyWorker     = "127.0.0.1:4985"
)

// flags hold what the command lines of all programs can say.
type flags struct {
	logLevel, logFormat string
	noAgent             bool
	insecureLegacy      bool
	legacyAPI           string
	schedulerURL        string
	control             ControlPlane
	scheduler           SchedulerSettings
	node                node.Options
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

func (f *flags) common(s *pflag.FlagSet) {
	s.StringVar(&f.control.DataDir, "data-dir", env("DATABASE_LOCATION", defaultDataDir), "where the cluster's data, certificates and credentials are kept [DATABASE_LOCATION]")
	s.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	s.StringVar(&f.logFormat, "log-format", "text", "text or json")
	s.StringVar(&f.control.BindAddress, "bind-address", "", "IP address to listen on; all by default")
	s.StringSliceVar(&f.control.ExtraSANs, "tls-san", nil, "further host names and addresses for the server's certificates")
}

func (f *flags) plane(s *pflag.FlagSet) {
	s.IntVar(&f.control.Port, "port", f.control.Port, "port of the API (TLS) [PORT]")
	s.IntVar(&f.control.NodePort, "node-port", f.control.NodePort, "port on which nodes reach the controller")
	s.StringVar(&f.control.AdvertiseAddress, "advertise-address", "", "IP address at which other machines reach this one; found by default")
	s.StringVar(&f.control.ClusterName, "cluster-name", "", "name in the generated configuration (default rik.local)")
	s.StringVar(&f.control.DatastoreEndpoint, "datastore-endpoint", "", "https://... of an etcd cluster, sqlite://, postgres:// or mysql://; embedded etcd by default")
	s.StringVar(&f.control.DatastoreCA, "datastore-cafile", "", "authority of the external datastore")
	s.StringVar(&f.control.DatastoreCert, "datastore-certfile", "", "certificate for the external datastore")
	s.StringVar(&f.control.DatastoreKey, "datastore-keyfile", "", "key for the external datastore")
	s.BoolVar(&f.control.LeaderElection, "leader-elect", false, "wait for other controllers on the same datastore to give up")
	s.DurationVar(&f.control.ReplaceAfter, "replace-after", time.Minute, "silence of a node, counted from --node-timeout on, after which its instances are replaced; a workload may say otherwise")
	s.StringVar(&f.control.Network.ClusterCIDR, "cluster-cidr", network.DefaultClusterCIDR, "range that the addresses of instances come from (IPv4)")
	s.IntVar(&f.control.Network.NodeCIDRSize, "node-cidr-size", network.DefaultNodeCIDRSize, "prefix length of one node's share of it")
	s.StringVar(&f.control.Network.ServiceCIDR, "service-cidr", network.DefaultServiceCIDR, "range that the virtual addresses of workloads come from (IPv4)")
	s.StringVar(&f.control.Network.Domain, "cluster-domain", network.DefaultDomain, "what the names of workloads end in")
	s.DurationVar(&f.control.NodeValidity, "node-certificate-validity", 30*24*time.Hour, "life of a node's certificate; it renews itself")
}

func (f *flags) schedulerPorts(s *pflag.FlagSet) {
	s.IntVar(&f.scheduler.WorkerPort, "worker-port", f.scheduler.WorkerPort, "port on which nodes reach the scheduler")
	s.DurationVar(&f.scheduler.NodeTimeout, "node-timeout", scheduler.DefaultNodeTimeout, "silence of a node after which nothing is placed there and its instances count as Unknown")
	s.BoolVar(&f.scheduler.Packing, "pack", false, "fill nodes one after the other instead of spreading")
}

func (f *flags) legacy(s *pflag.FlagSet) {
	s.BoolVar(&f.insecureLegacy, "insecure-legacy", false, "serve the published protocols too, on loopback, without encryption or identity: every local user is then an administrator")
}

// schedulerSettings fills in what the scheduler shares with the control plane.
func (f *flags) schedulerSettings() SchedulerSettings {
	s := f.scheduler
	s.DataDir, s.BindAddress, s.ExtraSANs = f.control.DataDir, f.control.BindAddress, f.control.ExtraSANs
	s.InsecureLegacy = f.insecureLegacy
	return s
}

func (f *flags) controlPlane() ControlPlane {
	c := f.control
	if f.insecureLegacy {
		c.InsecureLegacyAddress = f.legacyAPI
	}
	return c
}

// judge finds mistakes in the settings of a control plane before it opens or
// makes anything.
func (f *flags) judge() error {
	if _, err := f.control.Network.Parse(); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return nil
}

// env is an environment variable, or what it falls back to when it is empty.
func env(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// envInt reads a number; nonsense falls back, and the flag says what is used.
func envInt(name string, fallback int) int {
	if v, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return v
	}
	return fallback
}
