package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet"
	"rik.dev/rik/internal/riklet/connection"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/network"
	"rik.dev/rik/internal/riklet/nodelock"
	"rik.dev/rik/internal/riklet/runner"
	"rik.dev/rik/internal/riklet/runner/microvm"
	"rik.dev/rik/internal/riklet/runner/oci"
	"rik.dev/rik/internal/riklet/signals"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/version"
)

// maxMessage is the same limit as for the agent's connections over the network.
const maxMessage = 32 << 20

// Connections describes how the node reaches its cluster: over the network with a token, or
// inside this process.
type Connections struct {
	// SchedulerAddress and ControllerAddress are host:port.
	SchedulerAddress, ControllerAddress string
	Token                               jointoken.Token
	// Scheduler and Controller are options for connections inside this process. They replace the
	// addresses.
	Scheduler, Controller []grpc.DialOption
	// Authority is the hash of the authority of a cluster in this process.
	Authority string
}

// Run runs the node until ctx ends. Its instances continue to run.
func Run(ctx context.Context, o Options, c Connections, log *slog.Logger) error {
	if err := o.Validate(); err != nil {
		return err
	}
	// Do this before starting any process, because processes inherit ignored signals.
	if err := signals.Ignore(); err != nil {
		return err
	}
	// Users in containers and Apps must be able to read the files that the node creates, with
	// any umask of the caller. Files that they must not read are in directories that only root
	// can enter.
	syscall.Umask(0o022)
	// Take the lock before reading anything in the directories.
	held, err := nodelock.Take(o.places())
	if err != nil {
		return err
	}
	return errors.Join(o.run(ctx, c, log.With("component", "riklet")), held.Release())
}

func (o *Options) places() nodelock.Places {
	return nodelock.Places{StateDir: o.StateDir, RunDir: o.RunDir, CgroupParent: o.CgroupParent}
}

// run runs the node while it holds the node lock.
func (o *Options) run(ctx context.Context, c Connections, log *slog.Logger) error {
	stores, err := o.openStores(log)
	if err != nil {
		return err
	}
	if err := stores.images.CanMount(); err != nil {
		return errors.Join(fmt.Errorf("%w; next: set --state-dir to a directory on a disk of this machine with ext4 or xfs, or use --no-agent for a server without a node", err), stores.Close())
	}
	config, err := o.config(ctx, c, stores, log)
	if err != nil {
		return errors.Join(err, stores.Close())
	}
	agent, err := riklet.New(config)
	if err != nil {
		return errors.Join(err, stores.Close())
	}
	return errors.Join(agent.Run(ctx), agent.Close(), stores.Close())
}

func (o *Options) openImages(log *slog.Logger) (*image.Store, error) {
	networks, _ := o.fetchNetworks() // Validate has checked them
	limits, _ := o.imageLimits()
	return image.Open(image.Config{
		Root:           filepath.Join(o.StateDir, "images"),
		Unpacker:       []string{o.Unpacker},
		Limits:         limits,
		RegistriesConf: o.RegistriesConf,
		AuthFile:       o.RegistriesAuth,
		CertDir:        o.CertDir,
		AllowNetworks:  networks,
		Logger:         log,
	})
}

func (o *Options) config(ctx context.Context, c Connections, s *stores, log *slog.Logger) (riklet.Config, error) {
	taints, _ := o.taints()     // Validate has checked them
	reserved, _ := o.reserved() // and these
	vm, err := o.newVM(s, log)
	if err != nil {
		return riklet.Config{}, err
	}
	config := riklet.Config{
		NodeName: o.NodeName, StateDir: o.StateDir, RunDir: o.RunDir,
		SchedulerAddr: c.SchedulerAddress, ControllerAddr: c.ControllerAddress, Token: c.Token,
		Labels: o.Labels, Taints: taints, Reserved: reserved, MaxInstances: o.MaxInstances,
		InternalAddress: o.Address, ExternalAddress: o.ExternalAddress,
		Driver:         o.drives(s, vm, log),
		Network:        o.network(ctx),
		Images:         collector{s},
		RuntimeVersion: runtimeVersion(ctx, o.Runc),
		Runtimes:       append([]string{oci.DefaultRuntime}, slices.Sorted(maps.Keys(o.Runtimes))...),
		Version:        version.Version,
		Logger:         log,
	}
	if c.Scheduler != nil {
		config.DialScheduler, config.DialController = inProcess(c.Scheduler), inProcess(slices.Concat(c.Controller, nodev1.DialOptions()))
		config.Authority = c.Authority
	}
	return config, nil
}

// drives returns the driver of the node and the kinds of workload that it runs.
func (o *Options) drives(s *stores, vm *microvm.Config, log *slog.Logger) riklet.Drives {
	d := riklet.Drives{
		Kinds: []rikv1alpha1.WorkloadKind{rikv1alpha1.KindPod, rikv1alpha1.KindApp},
		Make:  func(h riklet.Host) (instance.Driver, error) { return o.newPods(h, s, vm) },
	}
	if vm != nil {
		d.Kinds = append(d.Kinds, rikv1alpha1.KindFunction)
		d.Probes = map[rikv1alpha1.WorkloadKind]func(context.Context) error{rikv1alpha1.KindFunction: probe(vm, log)}
	}
	return d
}

// network returns nil if the node has no network.
func (o *Options) network(ctx context.Context) riklet.NetworkFunc {
	if o.Network == NetworkNone {
		return nil
	}
	return func(h riklet.Host) (riklet.Network, error) {
		config := o.networkConfig()
		config.Node, config.Logger = h.NodeName, h.Logger
		n, err := network.Open(ctx, config)
		if err != nil {
			return nil, err // not a nil *network.Node in an interface
		}
		return n, nil
	}
}

func (o *Options) networkConfig() network.Config {
	allowed, _ := o.allowFrom() // Validate has checked it
	return network.Config{
		Node: o.NodeName, Dir: filepath.Join(o.StateDir, "network"), Tunnels: o.Network == NetworkVXLAN, AllowFrom: allowed,
		NameServer: []string{o.NameServer},
	}
}

func (o *Options) newPods(h riklet.Host, s *stores, vm *microvm.Config) (*runner.Driver, error) {
	return runner.New(runner.Config{
		Root: filepath.Join(h.StateDir, "pods"), Run: h.RunDir,
		Runc: o.Runc, AllowOldRunc: o.AllowOldRunc, Shim: o.Shim, Runtimes: o.Runtimes,
		Images: s.images, Archives: s.archives, AllowRootApps: o.AllowRootApps, VM: vm,
		Objects: h.Objects, Network: h.Network,
		Node:         runner.NodeIdentity{Name: h.NodeName, Address: h.Address},
		CgroupParent: o.CgroupParent,
		Changed:      h.Changed,
		Logger:       h.Logger,
	})
}

func inProcess(options []grpc.DialOption) connection.DialFunc {
	options = append(slices.Clone(options), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	return func(context.Context) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///in-process", options...)
	}
}

// runtimeVersion returns the first line of the program's version, such as "runc 1.5.2"; empty if
// the program prints none.
func runtimeVersion(ctx context.Context, runc string) string {
	out, err := exec.CommandContext(ctx, runc, "--version").Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.Replace(strings.TrimSpace(line), " version ", " ", 1)
}

// The policy for collecting images. When the disk is nearly full, images that were unused for a
// day are removed. Under disk pressure, images that were unused for a minute are removed.
const (
	collectAge, collectPressureAge = 24 * time.Hour, time.Minute
	collectHigh, collectLow        = 85, 80
)

// collector implements riklet.Images with the stores.
type collector struct{ *stores }

// References implements riklet.Images.
func (c collector) References() []string {
	infos := c.images.Images()
	references := make([]string, len(infos))
	for i := range infos {
		references[i] = infos[i].Reference
	}
	return references
}

// Collect implements riklet.Images. It removes files that depend on images before the images.
func (c collector) Collect(ctx context.Context, pressure bool) (int64, error) {
	policy := image.CollectPolicy{MinAge: collectAge, HighPercent: collectHigh, LowPercent: collectLow, Now: time.Now()}
	if pressure {
		policy.MinAge, policy.HighPercent, policy.LowPercent = collectPressureAge, 0, 0
	}
	errs := []error{c.archives.Collect(ctx, policy.MinAge)}
	if c.disks != nil {
		errs = append(errs, c.disks.Collect(ctx, policy.MinAge))
	}
	freed, err := c.images.Collect(ctx, policy)
	return freed, errors.Join(append(errs, err)...)
}
