package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"rik.dev/rik/internal/riklet/archive"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/microvm"
	"rik.dev/rik/internal/riklet/runner/oci"
	"rik.dev/rik/internal/riklet/shim/logfile"
)

// Clock supplies the time for back-offs, probes and grace periods.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// NodeIdentity is what instances can read about their node.
type NodeIdentity struct{ Name, Address string }

// Config configures a Driver. Root, Run, Shim, Images and Objects are required.
type Config struct {
	// Root is the absolute path of the directory for files that survive a reboot.
	Root string
	// Run is the absolute path of the directory for files that must not survive a reboot. It must
	// be short, because it contains unix sockets. It contains secrets, so the driver mounts a
	// tmpfs there if it is not in memory yet. Purge unmounts that tmpfs.
	Run string
	// Runc is the default OCI runtime; "" means runc on the PATH.
	Runc string
	// AllowOldRunc accepts a runc version with known vulnerabilities.
	AllowOldRunc bool
	// Shim is the path of the program rik-shim, the supervisor.
	Shim string
	// Runtimes maps the runtime names of templates to the paths of more OCI runtimes.
	Runtimes map[string]string
	Images   oci.Images
	Objects  instance.Objects
	// Archives supplies the files of Apps. If it is nil, the node runs no Apps.
	Archives archive.Store
	// AllowRootApps allows Apps to run as root if they request it.
	AllowRootApps bool
	// VM configures microVMs. If it is nil, the node runs no microVMs.
	VM *microvm.Config
	// Network attaches instances to the network and assigns their addresses. If it is nil,
	// instances have only their loopback device.
	Network instance.Network
	// Dial connects to an instance's address as a client on the node does. If it is nil, the
	// driver dials from the network namespace of this process.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Resolver is the path of the host's resolv.conf(5). Empty means the usual path.
	Resolver string
	Node     NodeIdentity
	// DrainDelay is the time between the order to stop an instance that serves ports and its stop
	// signal. 0 means DefaultDrainDelay, or no delay without a Network. A negative value means no
	// delay.
	DrainDelay time.Duration
	Logger     *slog.Logger // nil discards logs
	Clock      Clock        // nil means the system clock
	// LogLimits bounds the log of each container.
	LogLimits logfile.Limits
	// StartsAtOnce bounds how many containers start at the same time. The default is 4 for each
	// processor. An image pull does not count.
	StartsAtOnce int
	// PIDsPerContainer bounds the processes of a container. 0 means spec.DefaultPIDs.
	PIDsPerContainer int64
	// HealthInterval is the time between two health checks of a microVM, and HealthTimeout is the
	// limit for one answer. The defaults are one minute and 30 seconds.
	HealthInterval, HealthTimeout time.Duration
	// CgroupParent is relative to the roots of the cgroup hierarchies. The default is /rik.
	CgroupParent string
	// Changed is called when an observation has changed. It must not block.
	Changed func()
	// Hook is called at every step. It is for tests.
	Hook lifecycle.Hook
}

// Default values of a Config.
const (
	DefaultCgroupParent = "/rik"
	startsPerProcessor  = 4
)

// maxSocketPath is the size of sun_path in sockaddr_un without its final NUL.
const maxSocketPath = 107

// socketRoom is the length of the longest path of a socket below Run, with the longest UID: that
// of a microVM's guest.
const socketRoom = len("/pods//guest.sock") + engine.MaxUID

var cgroupPath = regexp.MustCompile(`^(/[A-Za-z0-9][A-Za-z0-9._-]*)+$`)

// Validate reports every problem in the configuration.
func (c Config) Validate() error {
	var errs []error
	for name, path := range map[string]string{"Root": c.Root, "Run": c.Run, "Shim": c.Shim} {
		if !filepath.IsAbs(path) || strings.ContainsAny(path, "\x00\n") {
			errs = append(errs, fmt.Errorf("%s %q is not an absolute path", name, path))
		}
	}
	if len(c.Run)+socketRoom > maxSocketPath {
		errs = append(errs, fmt.Errorf("Run %q is too long for the sockets in it: at most %d bytes", c.Run, maxSocketPath-socketRoom))
	}
	if c.Images == nil || c.Objects == nil {
		errs = append(errs, errors.New("both Images and Objects are required"))
	}
	if c.CgroupParent != "" && !cgroupPath.MatchString(c.CgroupParent) {
		errs = append(errs, fmt.Errorf("CgroupParent %q is not a plain path such as %s", c.CgroupParent, DefaultCgroupParent))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Resolver = cmp.Or(c.Resolver, "/etc/resolv.conf")
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	if c.Clock == nil {
		c.Clock = systemClock{}
	}
	c.Runc = cmp.Or(c.Runc, oci.DefaultRuntime)
	c.CgroupParent = cmp.Or(c.CgroupParent, DefaultCgroupParent)
	if c.StartsAtOnce <= 0 {
		c.StartsAtOnce = startsPerProcessor * runtime.NumCPU()
	}
	if c.DrainDelay == 0 && c.Network != nil {
		c.DrainDelay = DefaultDrainDelay
	}
	if c.HealthInterval <= 0 {
		c.HealthInterval = defaultHealthInterval
	}
	if c.HealthTimeout <= 0 {
		c.HealthTimeout = defaultHealthTimeout
	}
	if c.Changed == nil {
		c.Changed = func() {}
	}
	return c
}

// ErrInvalid is returned for an instance with an invalid name, UID or template.
var ErrInvalid = errors.New("invalid instance")

// validate rejects names that are unsafe in a path, before the driver uses them in one. The API
// server also rejects them, but a node does not rely on that.
func (d *Driver) validate(in instance.Instance) error {
	if !engine.ValidUID(in.UID) {
		return fmt.Errorf("%w: UID %q", ErrInvalid, in.UID)
	}
	t := in.Template
	if len(t.Processes()) == 0 {
		return fmt.Errorf("%w: no containers", ErrInvalid)
	}
	e := d.engineOf(t)
	if e == nil {
		return fmt.Errorf("%w: this node cannot run instances of kind %q", ErrInvalid, t.Kind)
	}
	if err := e.Validate(t); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	seen := map[string]bool{}
	for _, c := range engine.Containers(t) {
		if !engine.ValidName(c.Name) || seen[c.Name] {
			return fmt.Errorf("%w: container name %q is malformed or used twice", ErrInvalid, c.Name)
		}
		seen[c.Name] = true
	}
	for _, v := range t.Volumes {
		if !engine.ValidName(v.Name) {
			return fmt.Errorf("%w: volume name %q", ErrInvalid, v.Name)
		}
	}
	return nil
}
