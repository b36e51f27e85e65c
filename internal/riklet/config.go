package riklet

import (
	"cmp"
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
	"rik.dev/rik/internal/riklet/imagesession"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/monitor"
	"rik.dev/rik/internal/riklet/network/proxy"
	"rik.dev/rik/internal/riklet/session"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Default directories for data that must survive a reboot, and for data that need not.
const (
	DefaultStateDir = "/var/lib/riklet"
	DefaultRunDir   = "/run/riklet"
)

// ErrNotRoot is returned if the riklet does not run as root.
var ErrNotRoot = errors.New("the riklet must run as root: it mounts file systems, creates namespaces and writes cgroups")

// Host is what a driver or a network receives from the riklet.
type Host struct {
	// NodeName and Address are the node's name and address.
	NodeName, Address string
	// StateDir and RunDir are the riklet's directories. A driver creates its own directories in
	// them.
	StateDir, RunDir string
	// Objects returns the objects that templates refer to.
	Objects instance.Objects
	// Network connects instances. It is nil if the node has no network, and in a NetworkFunc.
	Network instance.Network
	// Changed must be called when the driver's Observations have changed. It does not block.
	Changed func()
	Logger  *slog.Logger
}

// DriverFunc creates the node's driver.
type DriverFunc func(Host) (instance.Driver, error)

// Drives is the driver of a node and the workload kinds that it runs.
type Drives struct {
	Kinds []rikv1alpha1.WorkloadKind
	Make  DriverFunc
	// Probes check whether this machine can run a kind, which may take seconds. The node
	// registers the kind once its probe returns nil. A kind without a probe is registered at
	// once.
	Probes map[rikv1alpha1.WorkloadKind]func(context.Context) error
}

// Network is the part of the node's network that the agent uses. *network.Node implements it.
type Network interface {
	instance.Network
	// Run keeps the network configured until ctx ends.
	Run(ctx context.Context) error
	// Apply applies changes from the controller. It does not block.
	Apply(*nodev1.NetworkChanges)
	// SetAddress sets the address at which other nodes reach this node.
	SetAddress(netip.Addr)
	// SetListeners sets the ports on which the machine's own processes listen.
	SetListeners([]proxy.Listener)
	// Lost reports whether a workload has a port although a process listens on it.
	Lost(proxy.HostPort) bool
	// Troubles returns messages about the parts of the network that do not work. The caller must
	// not change the map.
	Troubles() map[nodestate.TroubleKind]string
	// News returns a channel that is readable after Troubles has changed.
	News() <-chan struct{}
	// NameServer returns the address of the node's name server. It is invalid until the server
	// listens.
	NameServer() netip.AddrPort
	// Close releases the network. Run must have returned.
	Close() error
}

// NetworkFunc creates a node's network.
type NetworkFunc func(Host) (Network, error)

// Images is the part of the node's image store that the agent uses.
type Images interface {
	// References lists the images on this node.
	References() []string
	// Collect removes unused images: old ones, or under disk pressure as many as possible.
	Collect(ctx context.Context, pressure bool) (freedBytes int64, err error)
	// Sessions serves requests of users. users lists the instances that need images.
	Sessions(users func() []imagesession.User) session.Images
	// Load loads the archives of the node, and returns a message about those that it refused. It
	// returns "" if there are none.
	Load(ctx context.Context) (trouble string)
}

// Config configures a [Riklet].
type Config struct {
	// NodeName is the node's name in the cluster. Required.
	NodeName string
	// StateDir and RunDir default to DefaultStateDir and DefaultRunDir.
	StateDir, RunDir string

	// SchedulerAddr and ControllerAddr are the host:port addresses of the services for nodes.
	// Each is required unless the corresponding Dial function is set.
	SchedulerAddr, ControllerAddr string
	// DialScheduler and DialController connect to peers in the same process. They replace the
	// network and the node's certificate.
	DialScheduler, DialController connection.DialFunc
	// Authority is the hash of the cluster's certificate authority, for peers in the same
	// process. Over the network, the node's certificate contains it.
	Authority string
	// Token lets the node join. It is not needed after that.
	Token jointoken.Token
	// ServerName is the name to verify in the servers' certificates. Empty means the host of each
	// address.
	ServerName string
	// DialOptions are added to the options of connections over the network.
	DialOptions []grpc.DialOption

	// Labels and Taints are requested when the node first joins.
	Labels map[string]string
	Taints []rikv1alpha1.Taint
	// Reserved is the capacity that instances cannot use.
	Reserved rikv1alpha1.ResourceList
	// MaxInstances defaults to monitor.DefaultMaxInstances.
	MaxInstances int64
	// InternalAddress and ExternalAddress override detected addresses. ExternalAddress is never
	// detected.
	InternalAddress, ExternalAddress string

	// Driver creates the driver that runs instances. An instance of another kind than the driver's
	// is Failed with a message.
	Driver Drives
	// Network may be nil. Then instances have only their loopback device.
	Network NetworkFunc
	// Images may be nil for a node without images.
	Images Images
	// RuntimeVersion is the version of the default OCI runtime. Runtimes are the names of all OCI
	// runtimes.
	RuntimeVersion string
	Runtimes       []string

	// MetricsInterval defaults to monitor.DefaultInterval.
	MetricsInterval time.Duration
	// Unprivileged skips the check for root, for a driver that does not need it.
	Unprivileged bool
	// Version is the version of this riklet.
	Version string
	// Logger may be nil, which discards logs.
	Logger *slog.Logger
}

// Validate reports every problem in the configuration.
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
	if c.Driver.Make == nil || len(c.Driver.Kinds) == 0 {
		problems = append(problems, errors.New("no driver is configured, so the node cannot run instances"))
	}
	if c.MetricsInterval < 0 {
		problems = append(problems, errors.New("the metrics interval must not be negative"))
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
	// One identity serves both connections, so both peers must be in the same process or neither.
	if (c.DialScheduler == nil) != (c.DialController == nil) {
		problems = append(problems, errors.New("DialScheduler and DialController must be set together: both peers run in this process, or neither does"))
	}
	if c.Token != (jointoken.Token{}) {
		if err := c.Token.Validate(); err != nil {
			problems = append(problems, fmt.Errorf("the join token: %w", err))
		}
	}
	return problems
}

// ValidateNode reports the problems in the node's settings, except its name. They can be checked
// before the driver and the peers are known.
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
			problems = append(problems, fmt.Errorf("taint %q: the effect %q must be NoSchedule, PreferNoSchedule or NoExecute", taint.Text(), taint.Effect))
		}
	}
	for name, q := range c.Reserved {
		if q.Sign() < 0 {
			problems = append(problems, fmt.Errorf("reserved %s: %s is negative", name, q.String()))
		}
	}
	if c.MaxInstances < 0 {
		problems = append(problems, fmt.Errorf("the maximum number of instances, %d, must not be negative", c.MaxInstances))
	}
	for name, address := range map[string]string{"internal": c.InternalAddress, "external": c.ExternalAddress} {
		if address != "" && net.ParseIP(address) == nil {
			problems = append(problems, fmt.Errorf("the %s address %q is not an IP address", name, address))
		}
	}
	return problems
}

func (c Config) withDefaults() Config {
	c.StateDir = cmp.Or(c.StateDir, DefaultStateDir)
	c.RunDir = cmp.Or(c.RunDir, DefaultRunDir)
	c.MetricsInterval = cmp.Or(c.MetricsInterval, monitor.DefaultInterval)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}
