package runner

import (
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
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/shim/logfile"
)

// Images is what a Driver needs of the node's image store; *image.Store has it.
type Images interface {
	Pull(ctx context.Context, request image.PullRequest) (*image.Image, error)
	Mount(ctx context.Context, id string, img *image.Image) (rootfs string, err error)
	Unmount(ctx context.Context, id string, keepWritable bool) error
	Mounted() ([]string, error)
	// Written is the directory of what was written over an image, which need not be there.
	Written(id string) string
}

// Clock tells the time to everything that waits for one: back-offs, probes and
// grace periods.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// NodeIdentity is what instances may know of their node.
type NodeIdentity struct{ Name, Address string }

// Config is all that a Driver is told. Root, Run, Shim, Images and Objects are
// required.
type Config struct {
	// Root is an absolute directory for what outlives a reboot.
	Root string
	// Run is an absolute directory for what must not. It has to be short: unix
	// sockets lie in it. When it is not in memory the driver mounts a tmpfs
	// there, because secrets are kept in it; Purge unmounts it.
	Run string
	// Runc is the default OCI runtime; "" means runc on the PATH.
	Runc string
	// AllowOldRunc takes a runc with known holes.
	AllowOldRunc bool
	// Shim is the path of the program rik-shim.
	Shim string
	// Runtimes maps the names that templates use to further OCI runtimes.
	Runtimes map[string]string
	Images   Images
	Objects  instance.Objects
	// Archives are the files of Apps; nil: the node runs none.
	Archives archive.Store
	// AllowRootApps lets Apps be root that ask for it.
	AllowRootApps bool
	// VM is what microVMs are made with; nil: the node runs none.
	VM *VM
	// Network is where instances get their addresses; nil: they have their
	// loopback and nothing else.
	Network instance.Network
	// Dial connects to an instance's address as a client on the node does; nil:
	// from the network of this process.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Resolver is the path of the host's resolv.conf(5); the usual one when empty.
	Resolver string
	Node     NodeIdentity
	// DrainDelay is how long after its order a stop signal is sent to an
	// instance that serves ports; 0 means DefaultDrainDelay, or none without a
	// Network; negative: none.
	DrainDelay time.Duration
	Logger     *slog.Logger // nil discards
	Clock      Clock        // nil: the system's
	// LogLimits bound the log of each container.
	LogLimits logfile.Limits
	// StartsAtOnce bounds how many containers are started at the same time;
	// default 4 a processor. Waiting for an image does not count.
	StartsAtOnce int
	// PIDsPerContainer bounds processes; 0 means spec.DefaultPIDs.
	PIDsPerContainer int64
	// HealthInterval is how often a microVM is asked whether it is there, HealthTimeout
	// how long it may take to say so; by default a minute and half of one.
	HealthInterval, HealthTimeout time.Duration
	// CgroupParent is relative to the hierarchies' roots; default /rik.
	CgroupParent string
	// Changed is called when an observation changed. It must not block.
	Changed func()
	// Hook sees every step; for tests.
	Hook lifecycle.Hook
}

// Defaults of a Config.
const (
	DefaultRuntime      = "runc"
	DefaultCgroupParent = "/rik"
	startsPerProcessor  = 4
)

// maxSocketPath is the room in sockaddr_un without its final zero.
const maxSocketPath = 107

// socketRoom is the length of the longest path of a socket under Run: that of a microVM's guest.
const socketRoom = len("/pods//guest.sock") + maxUID

var cgroupPath = regexp.MustCompile(`^(/[A-Za-z0-9][A-Za-z0-9._-]*)+$`)

// Validate reports every problem of the configuration.
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
		errs = append(errs, errors.New("Images and Objects are required"))
	}
	if c.CgroupParent != "" && !cgroupPath.MatchString(c.CgroupParent) {
		errs = append(errs, fmt.Errorf("CgroupParent %q is not a plain path such as %s", c.CgroupParent, DefaultCgroupParent))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Resolver == "" {
		c.Resolver = "/etc/resolv.conf"
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	if c.Clock == nil {
		c.Clock = systemClock{}
	}
	if c.Runc == "" {
		c.Runc = DefaultRuntime
	}
	if c.CgroupParent == "" {
		c.CgroupParent = DefaultCgroupParent
	}
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

// maxUID bounds an instance's UID: they are UUIDs.
const maxUID = 36

var (
	// ErrInvalid is returned for an order that names something impossible.
	ErrInvalid = errors.New("invalid instance")

	validUID  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?$`)
	validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// validate refuses what would become a path, before it does. The API server
// refused it too; a node does not rely on that.
func (d *Driver) validate(in instance.Instance) error {
	if !validUID.MatchString(in.UID) {
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
	if err := e.validate(t); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	seen := map[string]bool{}
	for _, c := range allContainers(t) {
		if !validName.MatchString(c.Name) || seen[c.Name] {
			return fmt.Errorf("%w: container name %q is malformed or used twice", ErrInvalid, c.Name)
		}
		seen[c.Name] = true
	}
	for _, v := range t.Volumes {
		if !validName.MatchString(v.Name) {
			return fmt.Errorf("%w: volume name %q", ErrInvalid, v.Name)
		}
	}
	return nil
}
