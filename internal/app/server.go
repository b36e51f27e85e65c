package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/component-base/metrics/legacyregistry"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/audit"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/listener"
	"rik.dev/rik/internal/apiserver/registry/inprocess"
	"rik.dev/rik/internal/apiserver/registry/instance"
	"rik.dev/rik/internal/app/recovery"
	"rik.dev/rik/internal/controller"
	"rik.dev/rik/internal/controller/jointoken"
	"rik.dev/rik/internal/controller/network"
	"rik.dev/rik/internal/controller/nodeapi"
	"rik.dev/rik/internal/controller/servers"
	"rik.dev/rik/internal/heap"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/version"
)

// ControlPlane configures the API server and the controller.
type ControlPlane struct {
	DataDir          string
	BindAddress      string
	AdvertiseAddress string
	Port             int
	NodePort         int
	ExtraSANs        []string
	ClusterName      string

	DatastoreEndpoint, DatastoreCA, DatastoreCert, DatastoreKey string
	// DatastoreQuota is the quota of the embedded etcd.
	DatastoreQuota datastore.Quota
	// NewCluster and AcceptKeys are as in apiserver.Config.
	NewCluster, AcceptKeys bool

	// InsecureLegacyAddress serves the published API over plain HTTP; empty means not at all.
	InsecureLegacyAddress string
	// LeaderElection makes the controller wait for the lease.
	LeaderElection bool
	ReplaceAfter   time.Duration
	// NodeTimeout is how long the controller may have no scheduler before all nodes count as not
	// reporting.
	NodeTimeout time.Duration
	// Network holds the ranges of addresses and the domain of names.
	Network network.Options
	// NodePorts is a list of ports and ranges of ports. Workloads may use them as node ports.
	NodePorts string
	// WorkerPort is a port of the scheduler. No workload may use it.
	WorkerPort   int
	NodeValidity time.Duration
	// TokenFile gets the join token that the first start creates. The default is
	// apiserver.NodeTokenFile in DataDir.
	TokenFile string
	// Backups is the schedule of backups, or nil.
	Backups *recovery.Plan
	// ServerName is the name of this server among several. It is empty for a program that is never
	// one of several with an embedded etcd.
	ServerName string
	// PeerAddress is the address for other servers, with an optional port.
	PeerAddress string
	// OnlyServer makes this server continue without the others.
	OnlyServer bool
	// Peers are the peer URLs of the servers that this one joins now.
	Peers []string
	// Shared are the settings that all servers have in common, by flag.
	Shared map[string]string
	// Steps gets the steps of the start.
	Steps *steps
	// Connections counts the connections of the process.
	Connections *listener.Connections
}

func (c ControlPlane) tokenFile() string {
	return cmp.Or(c.TokenFile, filepath.Join(c.DataDir, apiserver.NodeTokenFile))
}

// plane is a running control plane.
type plane struct {
	settings  ControlPlane
	log       *slog.Logger
	authority *pki.Authority

	api        *apiserver.Server
	controller *controller.Controller
	nodes      *nodeapi.Server
	tokens     *jointoken.Tokens
	roster     *servers.Roster
	identity   string
	// components is the certificate with which this server probes others.
	components *pki.Leaf
	// severalContext ends when this server becomes one of several.
	severalContext context.Context //nolint:containedctx // it is an event, and not passed on
	becomeSeveral  context.CancelFunc
	// local is the in-process listener of the node service.
	local pipe

	// These need the controller, which is created after the API server.
	late   instance.LateSessions
	routes routes
}

// newPlane prepares everything before serving. The caller must call run, even with a canceled
// context, because run releases the datastore.
func newPlane(ctx context.Context, settings ControlPlane, authority *pki.Authority, scheduler func(context.Context) (*grpc.ClientConn, error), log *slog.Logger) (*plane, error) {
	nodePorts, err := settings.nodePorts()
	if err != nil {
		return nil, err
	}
	p := &plane{settings: settings, log: log, authority: authority, local: newPipe()}
	cfg := settings.server(log)
	p.severalContext, p.becomeSeveral = context.WithCancel(context.Background())
	if settings.ServerName != "" {
		if cfg.Several, err = p.severalSettings(); err != nil {
			return nil, err
		}
	}
	cfg.Metrics = legacyregistry.Registerer()
	cfg.Authority, cfg.Sessions, cfg.NodePorts, cfg.Routes = authority, &p.late, nodePorts, p.routes.list
	p.api, err = apiserver.New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := p.makeController(ctx, scheduler); err != nil {
		return nil, errors.Join(err, p.release(ctx))
	}
	return p, nil
}

// server returns the configuration of the API server, without its connections to other parts.
func (c ControlPlane) server(log *slog.Logger) apiserver.Config {
	return apiserver.Config{
		DataDir:               c.DataDir,
		BindAddress:           c.BindAddress,
		Port:                  c.Port,
		AdvertiseAddress:      c.AdvertiseAddress,
		ExtraSANs:             c.ExtraSANs,
		ClusterName:           c.ClusterName,
		DatastoreEndpoint:     c.DatastoreEndpoint,
		DatastoreQuota:        int64(c.DatastoreQuota),
		DatastoreCAFile:       c.DatastoreCA,
		DatastoreCertFile:     c.DatastoreCert,
		DatastoreKeyFile:      c.DatastoreKey,
		NewCluster:            c.NewCluster,
		AcceptKeys:            c.AcceptKeys,
		InsecureLegacyAddress: c.InsecureLegacyAddress,
		Connections:           c.Connections,
		Step:                  c.Steps.begin,
		Logger:                log.With("component", "apiserver"),
	}
}

// nodePorts returns the ports of nodes that workloads may use.
func (c ControlPlane) nodePorts() (validation.NodePorts, error) {
	own := validation.OwnPorts(validation.ServerPorts{API: c.Port, Nodes: c.NodePort, Workers: c.WorkerPort, Peers: rikv1alpha1.PortPeers})
	ports, err := validation.ParseNodePorts(cmp.Or(c.NodePorts, validation.DefaultNodePorts), own)
	if err != nil {
		return ports, fmt.Errorf("--service-node-port-range: %w", err)
	}
	return ports, nil
}

// release closes what apiserver.New opened, without serving.
func (p *plane) release(ctx context.Context) error {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	return p.api.Run(ended)
}

func (p *plane) makeController(ctx context.Context, scheduler func(context.Context) (*grpc.ClientConn, error)) error {
	identity, err := controller.ProcessIdentity()
	if err != nil {
		return err
	}
	p.identity = identity
	embedded := p.api.Embedded()
	p.controller, err = controller.New(controller.Config{
		RestConfig:      p.api.LoopbackConfig(),
		Instances:       inprocess.NewInstances(p.api.Stores().Instances),
		SchedulerDial:   scheduler,
		Identity:        identity,
		LeaderElection:  p.settings.LeaderElection,
		SharedDatastore: datastore.Config{Endpoint: p.settings.DatastoreEndpoint}.Shared(),
		Several:         embedded != nil && embedded.IsSeveral(),
		ReplaceAfter:    p.settings.ReplaceAfter,
		NodeTimeout:     p.settings.NodeTimeout,
		Network:         p.settings.Network,
		Logger:          p.log.With("component", "controller"),
		Metrics:         legacyregistry.Registerer(),
	})
	if err != nil {
		return err
	}
	p.tokens = jointoken.New(p.controller.Client(), p.authority, time.Now)
	p.roster = servers.New(servers.Config{
		Client: p.controller.Client(), Informers: p.controller.Cache(), Holder: p.controller.Holder, Now: time.Now,
		Logger: p.log.With("component", "servers"),
	})
	if err := p.routeServers(ctx); err != nil {
		return err
	}
	p.nodes, err = nodeapi.New(nodeapi.Config{
		Client:       p.controller.Client(),
		Reader:       p.controller.Cache(),
		Informers:    p.controller.Cache(),
		Instances:    p.controller.Instances(),
		Tokens:       p.tokens,
		Authority:    p.authority,
		Measurements: p.controller.Measurements(),
		Network:      p.controller.Network(),
		Fences:       p.controller,
		Servers:      joining{p},
		Validity:     p.settings.NodeValidity,
		Audit:        auditOf(p.api.Audit()),
		Version:      version.Version,
		Logger:       p.log.With("component", "nodeapi"),
	})
	if err != nil {
		return err
	}
	p.late.Set(instance.SessionService{
		Open: func(ctx context.Context, node string, open *nodev1.OpenSession) (instance.Session, error) {
			return p.nodes.Open(ctx, node, open)
		},
		NotConnected: []error{nodeapi.ErrNodeNotConnected, nodeapi.ErrNodeLost},
		NotOpened:    []error{nodeapi.ErrNotOpened},
		Busy:         []error{nodeapi.ErrBusy},
	})
	p.routes.why.Set(p.controller.WhyHandler())
	p.routes.metrics.Set(p.controller.MetricsHandler())
	p.routes.tokens.Set(p.tokens.Handler())
	return nil
}

// routeServers serves the list of servers.
func (p *plane) routeServers(ctx context.Context) error {
	config, leaf, err := p.authority.ClientTLS(ctx, rikv1alpha1.UserController, "", p.log)
	if err != nil {
		return err
	}
	p.components = leaf
	remover := servers.Remover{Roster: p.roster, Probe: p.probe(config), EmbeddedEtcd: p.api.Embedded() != nil}
	p.routes.servers.Set(remover.Handler())
	return nil
}

// run serves until ctx ends or a part fails. It calls ready once the API answers and the
// controller works.
func (p *plane) run(ctx context.Context, ready func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	if embedded := p.api.Embedded(); embedded != nil {
		defer context.AfterFunc(ctx, embedded.Drain)()
	}
	// The API server must stop last, because the controller's last writes need it.
	dependents, stopDependents := context.WithCancel(ctx)
	defer stopDependents()
	apiContext, stopAPI := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAPI()
	group.Go(func() error {
		err := p.api.Run(apiContext)
		stopDependents()
		return err
	})
	group.Go(func() error {
		defer stopAPI()
		select {
		case <-dependents.Done():
			return nil
		case <-p.api.Ready():
		}
		p.settings.Steps.begin("the controller")
		return p.runDependents(dependents, ready)
	})
	return group.Wait()
}

func (p *plane) runDependents(ctx context.Context, ready func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.controller.Run(ctx) })
	group.Go(func() error { return p.nodes.Run(ctx) })
	group.Go(func() error { return p.keepServers(ctx) })
	group.Go(func() error { return p.components.Run(ctx) })
	group.Go(func() error { return p.tokens.Run(ctx, p.log.With("component", "jointoken")) })
	group.Go(func() error { return p.serveNodes(ctx) })
	if p.settings.Backups != nil {
		group.Go(func() error { return p.runBackups(ctx) })
	}
	group.Go(func() error {
		if err := p.tokens.EnsureFile(ctx, p.settings.tokenFile()); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.controller.Ready():
		}
		p.settings.Steps.ready("the API answers at " + p.api.URL())
		p.log.Info("ready", "url", p.api.URL())
		go heap.Tune(ctx, heap.Server())
		if ready == nil {
			return nil
		}
		return ready(ctx)
	})
	return group.Wait()
}

// serveNodes serves the node service to this process, and to other machines with TLS.
func (p *plane) serveNodes(ctx context.Context) error {
	socket, err := listener.Listen(ctx, p.settings.BindAddress, p.settings.NodePort, "--node-port")
	if err != nil {
		return fmt.Errorf("serving nodes: %w", err)
	}
	config, leaf, err := p.authority.ServerTLS(ctx, pki.OwnHosts(append(p.settings.ExtraSANs, p.settings.AdvertiseAddress)...), p.log)
	if err != nil {
		return errors.Join(err, socket.Close())
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return leaf.Run(ctx) })
	group.Go(func() error {
		return serveGRPC(ctx, p.settings.Connections.Limit(socket), p.nodeServer(false, grpc.Creds(credentials.NewTLS(listener.ByCertificate(config)))))
	})
	group.Go(func() error { return serveGRPC(ctx, p.local, p.nodeServer(true)) })
	return group.Wait()
}

func (p *plane) nodeServer(trusted bool, options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(options, nodeapi.ServerOptions()...)...)
	p.nodes.Register(server, trusted)
	return server
}

// serveGRPC serves until ctx ends.
func serveGRPC(ctx context.Context, listener net.Listener, server *grpc.Server) error {
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	}
	return nil
}

// auditOf records the requests of nodes to the controller in the API server's audit log.
func auditOf(log *audit.Log) func(nodeapi.AuditEntry) {
	return func(e nodeapi.AuditEntry) {
		log.Record(audit.Entry{
			Verb: e.Verb, Resource: cmp.Or(e.Resource, "nodes"), Name: e.Node, URI: e.Method, User: e.User, Groups: e.Groups,
			Source: e.From, Code: e.Code, Message: e.Message, Annotations: e.Annotations,
		})
	}
}
