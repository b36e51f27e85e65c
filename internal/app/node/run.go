package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"google.golang.org/grpc"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet"
	"rik.dev/rik/internal/riklet/caches"
	"rik.dev/rik/internal/riklet/connection"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/network"
	"rik.dev/rik/internal/riklet/nodelock"
	"rik.dev/rik/internal/riklet/runner"
	"rik.dev/rik/internal/riklet/runner/microvm"
	"rik.dev/rik/internal/riklet/runner/oci"
	"rik.dev/rik/internal/riklet/signals"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/sdnotify"
	"rik.dev/rik/internal/version"
)

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
	opened, err := o.openCaches(log)
	if err != nil {
		return err
	}
	if err := opened.Images.CanMount(); err != nil {
		return errors.Join(fmt.Errorf("%w; next: set --state-dir to a directory on a disk of this machine with ext4 or xfs, or use --no-agent for a server without a node", err), opened.Close())
	}
	config, err := o.config(ctx, c, opened, log)
	if err != nil {
		return errors.Join(err, opened.Close())
	}
	agent, err := riklet.New(config)
	if err != nil {
		return errors.Join(err, opened.Close())
	}
	var group sync.WaitGroup
	running, stop := context.WithCancel(ctx)
	group.Go(func() { o.notify(running, c, agent) })
	err = agent.Run(ctx)
	stop()
	group.Wait()
	return errors.Join(err, agent.Close(), opened.Close())
}

// joinedStatus is the beginning of the status of a service whose node has joined.
const joinedStatus = "joined "

// notify tells the service manager how far the node is. A node in a server's process is not a
// service of its own: it is ready with the server.
func (o *Options) notify(ctx context.Context, c Connections, agent *riklet.Riklet) {
	n, name := sdnotify.Of(ctx), "node "+o.NodeName
	starting, joining, joined := "recovering the instances of "+name, "joining "+c.ControllerAddress+" as "+name, joinedStatus+c.ControllerAddress+" as "+name
	if c.Controller != nil {
		const server = "the API answers; "
		starting, joining, joined = server+starting, server+name+" starts", server+name+" runs"
	}
	n.Status(starting)
	select {
	case <-ctx.Done():
		return
	case <-agent.Started():
	}
	n.Status(joining)
	if c.Controller == nil {
		// The instances do not wait for the cluster, so neither does the service.
		n.Ready()
	}
	select {
	case <-ctx.Done():
	case <-agent.Ready():
		n.Status(joined)
	}
}

func (o *Options) config(ctx context.Context, c Connections, s *caches.Caches, log *slog.Logger) (riklet.Config, error) {
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
		Images:         s,
		RuntimeVersion: oci.Version(ctx, o.Runc),
		Runtimes:       append([]string{oci.DefaultRuntime}, slices.Sorted(maps.Keys(o.Runtimes))...),
		Version:        version.Version,
		Logger:         log,
	}
	if c.Scheduler != nil {
		config.DialScheduler, config.DialController = connection.InProcess(c.Scheduler), connection.InProcess(slices.Concat(c.Controller, nodev1.DialOptions()))
		config.Authority = c.Authority
	}
	return config, nil
}

// drives returns the driver of the node and the kinds of workload that it runs.
func (o *Options) drives(s *caches.Caches, vm *microvm.Config, log *slog.Logger) riklet.Drives {
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

func (o *Options) newPods(h riklet.Host, s *caches.Caches, vm *microvm.Config) (*runner.Driver, error) {
	return runner.New(runner.Config{
		Root: filepath.Join(h.StateDir, "pods"), Run: h.RunDir,
		Runc: o.Runc, AllowOldRunc: o.AllowOldRunc, Shim: o.Shim, Runtimes: o.Runtimes,
		Images: s.Images, Archives: s.Archives, AllowRootApps: o.AllowRootApps, VM: vm,
		Objects: h.Objects, Network: h.Network,
		Node:         runner.NodeIdentity{Name: h.NodeName, Address: h.Address},
		CgroupParent: o.CgroupParent,
		Changed:      h.Changed,
		Logger:       h.Logger,
	})
}
