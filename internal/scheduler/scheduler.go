package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/scheduler/inventory"
	"rik.dev/rik/internal/scheduler/legacy"
	"rik.dev/rik/internal/wakeup"
)

const (
	// roundSize bounds the decisions that one round makes while the state is locked. Streams are
	// served between rounds.
	roundSize = 256
	// maxMessage bounds the size of a message from a peer. A list of every UID on a node with
	// 100,000 instances is smaller.
	maxMessage = 16 << 20
	// streamBuffer is the size of a connection's read and write buffers. The default of 32 KiB
	// each would use 320 MB for 5,000 nodes.
	streamBuffer = 4 << 10
)

// Scheduler is the scheduler component. Create it with New and call Run once.
type Scheduler struct {
	config    Config
	heartbeat time.Duration
	timeout   time.Duration
	clock     clock.Clock
	log       *slog.Logger
	metrics   *metrics
	legacy    *legacy.Service

	// wake holds a token while there may be instances to place or nodes to expire.
	wake wakeup.Signal
	// asked counts the calls of wakeLoop. answered is the value of asked that the loop has handled.
	asked, answered atomic.Int64
	// streams counts goroutines that outlive the handler that started them.
	streams sync.WaitGroup

	// mu guards the fields below. It is never held while a message is sent.
	mu        sync.Mutex
	inventory *inventory.Inventory
	// term is the highest term ever seen. controller is the stream of its controller while the
	// stream is open.
	term       int64
	controller *controllerStream
	// cluster is the cluster identity that the controller sent. It is empty if the controller
	// does not have it.
	cluster string
	// restored means that the cluster was restored from a backup. Nodes then stop no instance
	// without a confirmation that the cluster has no record of.
	restored bool
	// deletedNodes holds the UIDs of Nodes that were deleted on purpose.
	deletedNodes map[types.UID]bool
	workers      map[string]*workerStream
	// registers holds the last registration of every node.
	registers map[string]*registration
	// seen holds the last observation of every instance.
	seen map[string]*lastObservation
	// early holds observations of instances that the listing has not included yet.
	early map[string]*schedulerv1.Observation
	// removals holds, by UID, instances that no node may run because the controller does not
	// have them, or no longer has them. The value is the node that has the instance. It is empty
	// for any node.
	removals map[string]string
}

// New creates a scheduler. The scheduler owns the listeners: Run closes them.
func New(c Config) (*Scheduler, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the scheduler: %w", err)
	}
	heartbeat, timeout := c.timing()
	s := &Scheduler{
		config: c, heartbeat: heartbeat, timeout: timeout, clock: c.Clock, log: c.Logger, metrics: newMetrics(),
		wake: wakeup.New(), workers: map[string]*workerStream{}, registers: map[string]*registration{},
		seen: map[string]*lastObservation{}, early: map[string]*schedulerv1.Observation{}, removals: map[string]string{},
		deletedNodes: map[types.UID]bool{},
		inventory:    inventory.New(inventory.Options{Placement: c.Placement, NodeTimeout: timeout}),
	}
	if s.clock == nil {
		s.clock = clock.RealClock{}
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.legacy = legacy.New(s.log)
	if c.Registry != nil {
		if err := s.register(c.Registry); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Run serves until ctx ends or a listener fails. When it returns, every connection is closed
// and every goroutine that it started has ended.
func (s *Scheduler) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, e := range s.config.Controllers {
		server := s.server(e)
		schedulerv1.RegisterSchedulerServer(server, &controllerService{Scheduler: s, gate: gate{e.Trusted}})
		s.serve(ctx, group, server, e.Listener)
	}
	for _, e := range s.config.Workers {
		server := s.server(e)
		schedulerv1.RegisterWorkerServer(server, &workerService{Scheduler: s, gate: gate{e.Trusted}})
		s.serve(ctx, group, server, e.Listener)
	}
	s.serveLegacy(ctx, group)
	group.Go(func() error { return s.loop(ctx) })
	err := group.Wait()
	s.streams.Wait()
	return err
}

func (s *Scheduler) server(e Endpoint) *grpc.Server {
	creds := insecure.NewCredentials()
	if e.TLS != nil {
		creds = credentials.NewTLS(e.TLS)
	}
	return grpc.NewServer(
		grpc.Creds(creds), grpc.MaxRecvMsgSize(maxMessage), grpc.WaitForHandlers(true),
		grpc.ReadBufferSize(streamBuffer), grpc.WriteBufferSize(streamBuffer),
		// The server detects within the timeout that a peer was cut off.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: s.heartbeat, Timeout: s.timeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
}

func (s *Scheduler) serveLegacy(ctx context.Context, group *errgroup.Group) {
	if l := s.config.LegacyController; l != nil {
		server := grpc.NewServer(grpc.WaitForHandlers(true))
		s.legacy.RegisterController(server)
		s.serve(ctx, group, server, l)
	}
	if l := s.config.LegacyWorker; l != nil {
		server := grpc.NewServer(grpc.WaitForHandlers(true))
		s.legacy.RegisterWorker(server)
		s.serve(ctx, group, server, l)
	}
}

func (s *Scheduler) serve(ctx context.Context, group *errgroup.Group, server *grpc.Server, l net.Listener) {
	group.Go(func() error {
		if err := server.Serve(l); err != nil && ctx.Err() == nil {
			return fmt.Errorf("serving on %s: %w", l.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
}

// wakeLoop makes the loop run another round.
func (s *Scheduler) wakeLoop() {
	s.asked.Add(1)
	s.wake.Wake()
}

// loop runs a round whenever something changed, and detects lost nodes.
func (s *Scheduler) loop(ctx context.Context) error {
	timer := s.clock.NewTimer(s.timeout)
	defer timer.Stop()
	for {
		asked := s.asked.Load()
		next, more := s.round()
		if more {
			if ctx.Err() != nil {
				return nil
			}
			continue
		}
		s.answered.Store(asked)
		timer.Stop()
		timer = s.clock.NewTimer(next)
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C():
		}
	}
}

// round makes one round of decisions. It returns how long the loop may wait if no event occurs,
// or that there is more work at once.
func (s *Scheduler) round() (next time.Duration, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	s.expire(now)
	r := s.inventory.Place(roundSize, now)
	if len(r.Bindings) > 0 {
		s.metrics.rounds.Observe(s.clock.Since(now).Seconds())
	}
	if s.controller != nil {
		s.controller.send(r)
	}
	s.metrics.proposals.Add(float64(len(r.Bindings)))
	s.metrics.unplaced.Add(float64(len(r.Unplaced)))
	s.metrics.displaced.Add(float64(len(r.Displaced)))
	next = s.timeout
	if at, ok := s.inventory.NextDeadline(); ok {
		next = min(next, at.Sub(now))
	}
	if !r.SendAt.IsZero() {
		next = min(next, r.SendAt.Sub(now))
	}
	return max(next, time.Millisecond), r.More
}

// expire reports lost nodes to the controller.
func (s *Scheduler) expire(now time.Time) {
	for _, name := range s.inventory.Expire(now) {
		s.log.Warn("a node is lost", "node", name, "timeout", s.timeout)
		s.report(&schedulerv1.NodeReport{Name: name})
		s.dropRegistration(name)
	}
}
