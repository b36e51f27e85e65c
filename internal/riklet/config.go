package riklet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/validation"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/connection"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/monitor"
	"rik.dev/rik/internal/riklet/network/proxy"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Where the riklet keeps what it must not forget, and what a reboot may take.
const (
	DefaultStateDir = "/var/lib/riklet"
	DefaultRunDir   = "/run/riklet"
)

// ErrNotRoot says that the riklet lacks the rights to run anything.
var ErrNotRoot = errors.New("the riklet must run as root: it mounts file systems, makes namespaces and writes cgroups")

// Host is what a driver is given of the riklet around it.
type Host struct {
	// NodeName and Address are the node's.
	NodeName, Address string
	// StateDir and RunDir are the riklet's; a driver makes its own below them.
	StateDir, RunDir string
	// Objects answers what templates refer to.
	Objects instance.Objects
	// Network connects instances; nil when the node has none. Not for NetworkFunc.
	Network instance.Network
	// Changed is to be called when the driver's Observations changed. It does not
	// block.
	Changed func()
	Logger  *slog.Logger
}

// DriverFunc makes a driver.
type DriverFunc func(Host) (instance.Driver, error)

// Drives is a driver and the kinds that it runs.
type Drives struct {
	Kinds []rikv1alpha1.WorkloadKind
	Make  DriverFunc
	// Probes find out whether this machine can run a kind, which may take seconds: the
	// node says that it does once they return nil. A kind without one always runs.
	Probes map[rikv1alpha1.WorkloadKind]func(context.Context) error
}

// Network is the node's network as the agent needs it; *network.Node.
type Network interface {
	instance.Network
	// Run keeps it as it should be until ctx ends.
	Run(ctx context.Context) error
	// Apply takes what the controller tells. It does not block.
	Apply(*nodev1.NetworkChanges)
	// SetAddress says by which address other nodes reach this one.
	SetAddress(netip.Addr)
	// SetListeners says at which ports the machine's own processes listen.
	SetListeners([]proxy.Listener)
	// Lost says whether a workload has a port although a process listens on it.
	Lost(proxy.HostPort) bool
	// Troubles say what of it does not work, with messages. The caller must not change it.
	Troubles() map[nodestate.TroubleKind]string
	// News is readable after Troubles changed.
	News() <-chan struct{}
	// NameServer is where the node's name server listens; invalid before it does.
	NameServer() netip.AddrPort
	// Close lets go of it. Run has returned.
	Close() error
}

// NetworkFunc makes a node's network.
type NetworkFunc func(Host) (Network, error)

// Images is the node's image store as the agent needs it.
type Images interface {
	// References lists the images that are here.
	References() []string
	// Collect removes what is not used: what is old, or under pressure all that
	// it can.
	Collect(ctx context.Context, pressure bool) (freedBytes int64, err error)
}

// Config of a [Riklet].
type Config struct {
	// NodeName is the node's name in the cluster. Required.
	NodeName string
	// StateDir and RunDir default to DefaultStateDir and DefaultRunDir.
	StateDir, RunDir string

	// SchedulerAddr and ControllerAddr are host:port of the services for nodes.
	// Each is required unless the Dial function beside it is set.
	SchedulerAddr, ControllerAddr string
	// DialScheduler and DialController replace the network, and with it the
	// node's certificate, for peers in the same process.
	DialScheduler, DialController connection.DialFunc
	// Authority is the hash of the cluster's authority for peers in the same
	// process; over the network the node's certificate tells it.
	Authority string
	// Token lets the node join; not needed once it has.
	Token jointoken.Token
	// ServerName is looked for in the servers' certificates. The host of each
	// address when empty.
	ServerName string
	// DialOptions are added to those of the connections over the network.
	DialOptions []grpc.DialOption

	// Labels and Taints are asked for when the node first joins.
	Labels map[string]string
	Taints []rikv1alpha1.Taint
	// Reserved is kept from instances.
	Reserved rikv1alpha1.ResourceList
	// MaxInstances is monitor.DefaultMaxInstances when 0.
	MaxInstances int64
	// InternalAddress and ExternalAddress win over what is found; ExternalAddress
	// is not looked for.
	InternalAddress, ExternalAddress string

	// Drivers make what runs the instances. An instance of another
	// kind is Failed with a message.
	Drivers []Drives
	// Network may be nil: then instances have their loopback and nothing else.
	Network NetworkFunc
	// Images may be nil for a node without any.
	Images Images
	// RuntimeVersion of the default OCI runtime, and the names of all.
	RuntimeVersion string
	Runtimes       []string

	// MetricsInterval is monitor.DefaultInterval when 0.
	MetricsInterval time.Duration
	// Unprivileged skips the check for root, for drivers that do not need it.
	Unprivileged bool
	// Version is this riklet's.
	Version string
	// Logger discards when nil.
	Logger *slog.Logger
}

// Validate reports every problem.
func (c *Config) Validate() error {
	var problems []error
	for _, p := range nodestate.NodeNameProblems(c.NodeName) {
		problems = append(problems, fmt.Errorf("node name %q: %s", c.NodeName, p))
	}
	for name, dir := range map[string]string{"state": c.StateDir, "run": c.RunDir} {
		if dir != "" && (!filepath.IsAbs(dir) || strings.ContainsRune(dir, 0)) {
			problems = append(problems, fmt.Errorf("the %s directory %q is not an absolute path", name, dir))
		}
	}
	problems = append(problems, c.validatePeers()...)
	problems = append(problems, c.ValidateNode()...)
	if len(c.Drivers) == 0 {
		problems = append(problems, errors.New("no driver: the node could run nothing"))
	}
	if c.MetricsInterval < 0 {
		problems = append(problems, errors.New("the metrics' interval must not be negative"))
	}
	if !c.Unprivileged {
		problems = append(problems, requireRoot(os.Geteuid()))
	}
	return errors.Join(problems...)
}

func requireRoot(uid int) error {
	if uid != 0 {
		return fmt.Errorf("%w (the effective user is %d)", ErrNotRoot, uid)
	}
	return nil
}

func (c *Config) validatePeers() []error {
	var problems []error
	for _, peer := range []struct {
		name, address string
		dial          connection.DialFunc
	}{{"scheduler", c.SchedulerAddr, c.DialScheduler}, {"controller", c.ControllerAddr, c.DialController}} {
		if peer.dial != nil {
			continue
		}
		if _, _, err := net.SplitHostPort(peer.address); err != nil {
			problems = append(problems, fmt.Errorf("the %s's address %q is not host:port: %w", peer.name, peer.address, err))
		}
	}
	// One identity serves both connections; half of it in process makes no sense.
	if (c.DialScheduler == nil) != (c.DialController == nil) {
		problems = append(problems, errors.New("either both peers are in the process or none"))
	}
	if c.Token != (jointoken.Token{}) {
		if err := c.Token.Validate(); err != nil {
			problems = append(problems, fmt.Errorf("the join token: %w", err))
		}
	}
	return problems
}

// ValidateNode reports the problems of what the node says of itself but for its name,
// which can be judged before there are drivers and peers.
func (c *Config) ValidateNode() []error {
	var problems []error
	for key, value := range c.Labels {
		for _, p := range validation.IsQualifiedName(key) {
			problems = append(problems, fmt.Errorf("label %q: %s", key, p))
		}
		for _, p := range validation.IsValidLabelValue(value) {
			problems = append(problems, fmt.Errorf("value of label %q: %s", key, p))
		}
	}
	for _, taint := range c.Taints {
		for _, p := range validation.IsQualifiedName(taint.Key) {
			problems = append(problems, fmt.Errorf("taint %q: %s", taint.Text(), p))
		}
		for _, p := range validation.IsValidLabelValue(taint.Value) {
			problems = append(problems, fmt.Errorf("value of taint %q: %s", taint.Text(), p))
		}
		switch taint.Effect {
		case rikv1alpha1.TaintNoSchedule, rikv1alpha1.TaintPreferNoSchedule, rikv1alpha1.TaintNoExecute:
		default:
			problems = append(problems, fmt.Errorf("taint %q: the effect %q is none of NoSchedule, PreferNoSchedule and NoExecute", taint.Text(), taint.Effect))
		}
	}
	for name, q := range c.Reserved {
		if q.Sign() < 0 {
			problems = append(problems, fmt.Errorf("reserved %s: %s is negative", name, q.String()))
		}
	}
	if c.MaxInstances < 0 {
		problems = append(problems, fmt.Errorf("the most instances, %d, must not be negative", c.MaxInstances))
	}
	for name, address := range map[string]string{"internal": c.InternalAddress, "external": c.ExternalAddress} {
		if address != "" && net.ParseIP(address) == nil {
			problems = append(problems, fmt.Errorf("the %s address %q is not an IP address", name, address))
		}
	}
	return problems
}

func (c Config) withDefaults() Config {
	if c.StateDir == "" {
		c.StateDir = DefaultStateDir
	}
	if c.RunDir == "" {
		c.RunDir = DefaultRunDir
	}
	if c.MetricsInterval == 0 {
		c.MetricsInterval = monitor.DefaultInterval
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}
