package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/component-base/metrics/legacyregistry"

	"rik.dev/rik/internal/apiserver/authority"
	"rik.dev/rik/internal/apiserver/listener"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/scheduler"
	"rik.dev/rik/internal/scheduler/placement"
)

// SchedulerSettings configures the scheduler and its ports.
type SchedulerSettings struct {
	DataDir     string
	BindAddress string
	// ControllerPort is opened only if the controller is another process.
	ControllerPort int
	WorkerPort     int
	ExtraSANs      []string
	// InsecureLegacy also serves the published protocol, on loopback, at the two addresses.
	InsecureLegacy                         bool
	LegacyControllerAddress, LegacyAddress string
	Packing                                bool
	// NodeTimeout is the time without a report after which a node is lost.
	NodeTimeout time.Duration
	// Connections counts the connections of the process.
	Connections *listener.Connections
}

// schedulerServer is a scheduler with its listeners.
type schedulerServer struct {
	scheduler *scheduler.Scheduler
	leaf      *pki.Leaf
	// controllers and workers are the in-process listeners.
	controllers, workers pipe
}

// newSchedulerServer opens the ports. withController also opens the port for a controller in another
// process.
func newSchedulerServer(ctx context.Context, s SchedulerSettings, withController bool, ca *pki.Authority, log *slog.Logger) (*schedulerServer, error) {
	b := &schedulerServer{controllers: newPipe(), workers: newPipe()}
	config, leaf, err := ca.ServerTLS(ctx, pki.OwnHosts(s.ExtraSANs...), log)
	if err != nil {
		return nil, err
	}
	b.leaf = leaf
	// Unlike the node service, this port requires a client certificate.
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config = listener.ByCertificate(config)
	c := scheduler.Config{
		Controllers: []scheduler.Endpoint{{Listener: b.controllers, Trusted: true}},
		Workers:     []scheduler.Endpoint{{Listener: b.workers, Trusted: true}},
		NodeTimeout: s.NodeTimeout,
		Name:        "scheduler",
		Logger:      log.With("component", "scheduler"),
		Registry:    legacyregistry.Registerer(),
	}
	if s.Packing {
		c.Placement.Strategy = placement.BinPack
	}
	if err := openPorts(ctx, &c, s, withController, config); err != nil {
		return nil, errors.Join(err, closeAll(&c))
	}
	if b.scheduler, err = scheduler.New(c); err != nil {
		return nil, errors.Join(err, closeAll(&c))
	}
	return b, nil
}

func openPorts(ctx context.Context, c *scheduler.Config, s SchedulerSettings, withController bool, config *tls.Config) error {
	workers, err := listener.Listen(ctx, s.BindAddress, s.WorkerPort, "--worker-port")
	if err != nil {
		return fmt.Errorf("serving nodes at the scheduler: %w", err)
	}
	c.Workers = append(c.Workers, scheduler.Endpoint{Listener: s.Connections.Limit(workers), TLS: config})
	if withController {
		controllers, err := listener.Listen(ctx, s.BindAddress, s.ControllerPort, "--scheduler-port")
		if err != nil {
			return fmt.Errorf("serving the controller: %w", err)
		}
		c.Controllers = append(c.Controllers, scheduler.Endpoint{Listener: s.Connections.Limit(controllers), TLS: config})
	}
	if !s.InsecureLegacy {
		return nil
	}
	var listen net.ListenConfig
	controllers, err := listen.Listen(ctx, "tcp", s.LegacyControllerAddress)
	if err != nil {
		return fmt.Errorf("serving published controllers: %w", err)
	}
	c.LegacyController = s.Connections.Limit(controllers)
	published, err := listen.Listen(ctx, "tcp", s.LegacyAddress)
	if err != nil {
		return fmt.Errorf("serving published workers: %w", err)
	}
	c.LegacyWorker = s.Connections.Limit(published)
	return nil
}

func closeAll(c *scheduler.Config) error {
	var errs []error
	for _, e := range append(c.Controllers, c.Workers...) {
		errs = append(errs, e.Listener.Close())
	}
	for _, l := range []net.Listener{c.LegacyController, c.LegacyWorker} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

func (b *schedulerServer) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return b.leaf.Run(ctx) })
	group.Go(func() error { return b.scheduler.Run(ctx) })
	return group.Wait()
}

// runScheduler runs only the scheduler, until ctx ends.
func runScheduler(ctx context.Context, f *flags, log *slog.Logger) error {
	if err := f.validate(f.validateScheduler); err != nil {
		return err
	}
	s := f.schedulerSettings()
	ca, err := authority.Open(s.DataDir, false)
	if err != nil {
		return err
	}
	s.Connections = listener.NewConnections(listener.Budget{}, log)
	b, err := newSchedulerServer(ctx, s, true, ca, log)
	if err != nil {
		return err
	}
	log.Info("ready", "controller-port", s.ControllerPort, "worker-port", s.WorkerPort)
	return b.run(ctx)
}
