// Package riklet is the node agent. It carries out the orders of the scheduler with its driver,
// gets the objects that instances refer to from the controller, and reports the state of its
// instances.
//
// Its parts are separate packages: manager (the papers' Node Manager), monitor (Node Monitor),
// connection (the two connections), session (logs, exec, port-forward), objects, checkpoint, join
// and identity. The caller supplies the driver. When the agent ends, for any reason, its instances
// keep running, and the next agent recovers them.
// reason, its instances keep running, and the next agent recovers them.
package riklet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/checkpoint"
	"rik.dev/rik/internal/riklet/connection"
	"rik.dev/rik/internal/riklet/identity"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/join"
	"rik.dev/rik/internal/riklet/manager"
	"rik.dev/rik/internal/riklet/monitor"
	"rik.dev/rik/internal/riklet/objects"
	"rik.dev/rik/internal/riklet/servers"
	"rik.dev/rik/internal/riklet/session"
	"rik.dev/rik/internal/rpc/nodev1"
)

// maxMessage bounds the size of a message from a peer. A node with thousands of instances
// receives all of them in one message.
const maxMessage = 32 << 20

// serversFile is the file in the state directory with the servers of the cluster.
const serversFile = "servers.json"

// lookup is the timeout for finding the local address that reaches the scheduler.
const lookup = 5 * time.Second

// Riklet is the agent of one node.
type Riklet struct {
	cfg         Config
	checkpoints *checkpoint.Store
	objects     *objects.Store
	driver      instance.Driver
	manager     *manager.Manager
	network     Network // nil: none
	monitor     *monitor.Monitor
	outbox      *connection.Outbox
	identity    *join.Identity     // nil if the peers are in this process
	servers     *servers.Directory // the same
	// installation is the key that proves which riklet of the machine this is. run identifies
	// this run of it.
	installation, run string
	started, ready    chan struct{}

	scheduler  *connection.Scheduler
	controller *connection.Controller

	mu     sync.Mutex
	status *rikv1alpha1.NodeStatus // replaced as a whole
	images []string                // as last reported
	// archives is the message about image archives that were refused; "" if there are none.
	archives string
	ports    ports
}

// New returns a riklet with its driver. The caller must hold the lock on its directories.
// Nothing runs before Run. Close releases what New opened.
func New(cfg Config) (*Riklet, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Riklet{
		cfg: cfg.withDefaults(), run: identity.RunID(), outbox: connection.NewOutbox(),
		started: make(chan struct{}), ready: make(chan struct{}),
		ports: ports{reader: monitor.NewPorts("/proc")},
	}
	if err := r.open(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// open does the parts of New that can fail.
func (r *Riklet) open() error {
	for _, dir := range []string{r.cfg.StateDir, r.cfg.RunDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("creating the riklet's directory: %w", err)
		}
	}
	var err error
	if r.checkpoints, err = checkpoint.Open(filepath.Join(r.cfg.StateDir, checkpointFile)); err != nil {
		return err
	}
	if r.status, err = r.look(); err != nil {
		return err
	}
	if r.objects, err = objects.New(objects.Config{
		Dir: filepath.Join(r.cfg.StateDir, "revisions"), Changed: func() { r.manager.Changed() },
		Updated: r.objectsChanged, Logger: r.cfg.Logger,
	}); err != nil {
		return err
	}
	r.manager = manager.New(manager.Config{
		Kinds: r.cfg.Driver.Kinds, Objects: r.objects, Outbox: r.outbox, Checkpoint: r.checkpoints,
		Allowed: func() { close(r.ready) }, Held: func() { r.scheduler.HoldChanged() },
		Moved: func() { r.scheduler.Reconnect() }, Logger: r.cfg.Logger,
	})
	if err := r.makeNetwork(); err != nil {
		return err
	}
	if err := r.makeDriver(); err != nil {
		return err
	}
	if r.cfg.DialController == nil {
		if err := r.openIdentity(); err != nil {
			return err
		}
	}
	r.scheduler, r.controller = r.newScheduler(), r.newController()
	r.monitor = r.newMonitor()
	return nil
}

// mounter is a driver whose instances mount ConfigMaps and Secrets as files, which change with
// the objects while the instance runs.
type mounter interface{ ObjectsChanged() }

// objectsChanged makes the driver update mounted files at once, before its next regular check.
// The driver exists before the first object can arrive.
func (r *Riklet) objectsChanged() {
	if m, ok := r.driver.(mounter); ok {
		m.ObjectsChanged()
	}
}

// look reads the facts of the machine once. Facts that can change meanwhile are in the metrics.
func (r *Riklet) look() (*rikv1alpha1.NodeStatus, error) {
	machine, err := identity.Source{}.MachineID(r.cfg.StateDir)
	if err != nil {
		return nil, err
	}
	if r.installation, err = identity.InstallationKey(r.cfg.StateDir); err != nil {
		return nil, err
	}
	boot, err := identity.Source{}.BootID()
	if err != nil {
		return nil, err
	}
	// DNS may not work; the address is then found in another way.
	ctx, cancel := context.WithTimeout(context.Background(), lookup)
	defer cancel()
	return monitor.Facts(ctx, monitor.FactsConfig{
		Path: r.cfg.StateDir, Reserved: r.cfg.Reserved, MaxInstances: r.cfg.MaxInstances, Server: r.cfg.SchedulerAddr,
		InternalAddress: r.cfg.InternalAddress, ExternalAddress: r.cfg.ExternalAddress,
		Info: rikv1alpha1.NodeInfo{
			MachineID: machine, InstallationID: nodev1.InstallationID(r.installation), BootID: boot, AgentVersion: r.cfg.Version, RuntimeVersion: r.cfg.RuntimeVersion,
			Runtimes: r.cfg.Runtimes, Kinds: r.unprobedKinds(),
		},
	})
}

// host returns what the constructors of the driver and of the network receive.
func (r *Riklet) host() Host {
	h := Host{
		NodeName: r.cfg.NodeName, Address: r.status.Info.InternalAddress,
		StateDir: r.cfg.StateDir, RunDir: r.cfg.RunDir,
		Objects: r.objects, Changed: r.manager.Changed, Logger: r.cfg.Logger,
	}
	if r.network != nil { // else it would be an interface that holds a nil pointer
		h.Network = r.network
	}
	return h
}

func (r *Riklet) makeNetwork() error {
	if r.cfg.Network == nil {
		return nil
	}
	network, err := r.cfg.Network(r.host())
	if err != nil {
		return fmt.Errorf("creating the node's network: %w", err)
	}
	r.network = network
	r.updateAddress(r.status)
	return nil
}

// makeDriver creates the driver. The manager exists before, because the driver may call it at once.
func (r *Riklet) makeDriver() error {
	driver, err := r.cfg.Driver.Make(r.host())
	if err != nil {
		return fmt.Errorf("creating the driver for %v: %w", r.cfg.Driver.Kinds, err)
	}
	r.driver = driver
	r.manager.Use(driver)
	return nil
}

func (r *Riklet) openIdentity() error {
	r.servers = servers.Open(filepath.Join(r.cfg.StateDir, serversFile),
		servers.Address{Nodes: r.cfg.ControllerAddr, Workers: r.cfg.SchedulerAddr}, r.cfg.Logger)
	var err error
	r.identity, err = join.Open(join.Config{
		Server: r.cfg.ControllerAddr, Current: func() string { return r.servers.Current().Nodes }, ServerName: r.cfg.ServerName, Token: r.cfg.Token,
		NodeName: r.cfg.NodeName, MachineID: r.status.Info.MachineID, InstallationKey: r.installation, Dir: r.cfg.StateDir,
		Logger: r.cfg.Logger, DialOptions: r.cfg.DialOptions,
	})
	return err
}

// Started returns a channel that is closed when the node has recovered its instances and carries on
// with them. It may not have joined its cluster yet.
func (r *Riklet) Started() <-chan struct{} { return r.started }

// Ready returns a channel that is closed when the scheduler has sent the list of instances that may
// run here, and the node has applied it.
func (r *Riklet) Ready() <-chan struct{} { return r.ready }

// Resources returns the node's facts in the paper's JSON format.
func (r *Riklet) Resources() monitor.NodeResources {
	return monitor.Resources(r.cfg.NodeName, &r.facts().Info)
}

// Close releases the network and the driver's files. Run must have returned. Instances keep
// running.
func (r *Riklet) Close() error {
	var problems []error
	if c, ok := r.driver.(interface{ Close() error }); ok {
		problems = append(problems, c.Close())
	}
	if r.network != nil {
		problems = append(problems, r.network.Close())
		r.network = nil
	}
	return errors.Join(problems...)
}

// Run recovers the instances on this node. It then carries out orders until ctx ends or the node
// cannot join its cluster. It leaves all instances running.
func (r *Riklet) Run(ctx context.Context) error {
	if err := r.driver.Recover(ctx); err != nil {
		return fmt.Errorf("recovering instances of %v: %w", r.cfg.Driver.Kinds, err)
	}
	r.cfg.Logger.Info("instances recovered", "node", r.cfg.NodeName, "count", len(r.manager.List()))
	close(r.started)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := r.driver.Run(ctx); err != nil {
			return fmt.Errorf("running instances of %v: %w", r.cfg.Driver.Kinds, err)
		}
		return nil
	})
	group.Go(func() error { r.probe(ctx); return nil })
	if r.cfg.Images != nil {
		group.Go(func() error { r.loadImages(ctx); return nil })
	}
	if r.network != nil {
		// First: a port on which a process already listens must not go to a workload.
		r.lookForPorts()
		group.Go(func() error { return r.network.Run(ctx) })
	}
	group.Go(func() error { return r.manager.Run(ctx) })
	group.Go(func() error { return r.connect(ctx) })
	return group.Wait()
}

// connect joins the cluster if necessary and runs the connections. Instances on this node do not
// wait for it.
func (r *Riklet) connect(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if r.identity != nil {
		if err := r.identity.Ensure(ctx); err != nil {
			return r.outside(ctx, err)
		}
		group.Go(func() error { return r.identity.Run(ctx) })
	}
	r.saveCluster()
	if r.servers != nil {
		group.Go(func() error { r.follow(ctx); return nil })
	}
	group.Go(func() error { return r.scheduler.Run(ctx) })
	group.Go(func() error { return r.controller.Run(ctx) })
	group.Go(func() error { return r.monitor.Run(ctx) })
	return group.Wait()
}

// follow makes the connection to the scheduler go to the server of the controller.
func (r *Riklet) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.servers.Moved():
			r.scheduler.Reconnect()
		}
	}
}

// saveCluster stores in the checkpoint which cluster gives the orders. It does not stop the
// instances of an earlier cluster. The first order of this cluster stops them.
func (r *Riklet) saveCluster() {
	var cluster []string
	switch {
	case r.identity != nil:
		cluster = r.identity.Authorities()
	case r.cfg.Authority != "":
		cluster = []string{r.cfg.Authority}
	}
	moved, err := r.checkpoints.SetCluster(cluster)
	if err != nil {
		r.cfg.Logger.Error("saving the cluster failed; it is only in memory", "err", err)
	}
	if moved {
		r.cfg.Logger.Warn("the node belongs to another cluster now; it stops the instances of the former cluster", "count", len(r.manager.List()))
	}
}

// outside handles a node that its cluster does not accept. If instances run on the node, the riklet
// continues to run them. Otherwise outside returns the cause.
func (r *Riklet) outside(ctx context.Context, cause error) error {
	if ctx.Err() == nil {
		running := len(r.manager.List())
		if running == 0 {
			return cause
		}
		r.cfg.Logger.Error("the node is not part of a cluster; its instances continue to run", "count", running, "err", cause)
	}
	<-ctx.Done()
	return nil
}

// dial returns a function that connects to a peer over the network with the node's certificate. It
// chooses an address for each connection.
func (r *Riklet) dial(choose func() string, more ...grpc.DialOption) connection.DialFunc {
	return func(context.Context) (*grpc.ClientConn, error) {
		address := choose()
		name := r.cfg.ServerName
		if name == "" {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, fmt.Errorf("the address %q: %w", address, err)
			}
			name = host
		}
		config, err := r.identity.TLS(name)
		if err != nil {
			return nil, err
		}
		options := slices.Concat([]grpc.DialOption{
			grpc.WithTransportCredentials(credentials.NewTLS(config)), connection.KeepAlive(), connection.ConnectTimeout(), grpc.WithNoProxy(),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		}, more, r.cfg.DialOptions)
		// passthrough: the dialer resolves the name at every connection.
		return grpc.NewClient("passthrough:///"+address, options...)
	}
}

// newController returns the connection to the controller, with the riklet's parts as its handlers.
func (r *Riklet) newController() *connection.Controller {
	dial := r.cfg.DialController
	if dial == nil {
		dial = r.dial(func() string { return r.servers.Next().Nodes }, nodev1.DialOptions()...)
	}
	var images session.Images
	if r.cfg.Images != nil {
		images = r.cfg.Images.Sessions(r.imageUsers)
	}
	c := &connection.Controller{
		Dial: dial, Hello: &nodev1.NodeHello{NodeName: r.cfg.NodeName, Version: r.cfg.Version, RunId: r.run, Protocol: nodev1.Protocol},
		Objects: r.objects, Logger: r.cfg.Logger,
		Sessions: func(ctx context.Context, client nodev1.NodeClient) connection.Sessions {
			return session.New(ctx, session.Config{Node: r.cfg.NodeName, Resolve: r.resolve, Images: images, Client: client, Logger: r.cfg.Logger})
		},
	}
	if r.network != nil {
		c.Network = r.network.Apply
	}
	if r.servers != nil {
		c.Servers, c.Move, c.Ended = r.servers.Learn, r.servers.Move(), r.servers.Ended
	}
	return c
}
