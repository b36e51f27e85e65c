// Package legacy serves the two services of the published RIK scheduler to old controllers and
// old workers, and passes messages between them. It does not use rik's own instances and nodes,
// which an old worker cannot run.
//
// As in the published scheduler, a worker has no identity except its host name. Nothing is
// reattached and nothing is fenced. Three faults of the published scheduler are fixed here.
// Work is spread over the workers. A DESTROY goes to the worker that has the instance. No
// message of a peer ends the service.
package legacy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"rik.dev/rik/internal/rpc/legacy/common"
	"rik.dev/rik/internal/rpc/legacy/controller"
	"rik.dev/rik/internal/rpc/legacy/worker"
	"rik.dev/rik/internal/wakeup"
)

// maxInstances bounds the memory that peers without an identity can use.
const maxInstances = 100_000

// Service implements both services over one state.
type Service struct {
	log *slog.Logger

	mu        sync.Mutex
	workers   map[string]*connection
	instances map[string]*instance
	// unassigned holds instances that wait for a worker, in order of arrival.
	unassigned []*instance
	turn       int64
	// updates holds the last status of each subject for the controller. order holds the subjects
	// in order.
	updates    map[string]*common.WorkerStatus
	order      []string
	updated    wakeup.Signal
	subscribed bool
}

// connection is a connected worker.
type connection struct {
	host   string
	orders []*worker.InstanceScheduling
	ready  wakeup.Signal
	load   int
	// turn is the turn in which the worker last got an instance. The worker with the lowest turn
	// is next.
	turn int64
}

type instance struct {
	id, definition string
	// host is the worker that has the instance. It is empty while the instance is unassigned.
	host string
	// destroyed is set when the controller has requested a DESTROY.
	destroyed bool
}

// New creates a service without workers.
func New(log *slog.Logger) *Service {
	return &Service{
		log: log, workers: map[string]*connection{}, instances: map[string]*instance{},
		updates: map[string]*common.WorkerStatus{}, updated: wakeup.New(),
	}
}

// RegisterController adds controller.Controller to a server.
func (s *Service) RegisterController(r grpc.ServiceRegistrar) {
	controller.RegisterControllerServer(r, &controllerServer{Service: s})
}

// RegisterWorker adds worker.Worker to a server.
func (s *Service) RegisterWorker(r grpc.ServiceRegistrar) {
	worker.RegisterWorkerServer(r, &workerServer{Service: s})
}

type controllerServer struct {
	controller.UnimplementedControllerServer
	*Service
}

type workerServer struct {
	worker.UnimplementedWorkerServer
	*Service
}

// ScheduleInstance accepts a CREATE or a DESTROY of an instance. Success means only that the
// request is pending.
func (c *controllerServer) ScheduleInstance(_ context.Context, r *controller.WorkloadScheduling) (*emptypb.Empty, error) {
	if r.InstanceId == "" {
		return nil, status.Error(codes.InvalidArgument, "instance_id is missing")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Action == common.WorkloadRequestKind_DESTROY {
		return &emptypb.Empty{}, c.destroy(r.InstanceId)
	}
	if known := c.instances[r.InstanceId]; known != nil {
		return nil, status.Errorf(codes.AlreadyExists, "instance %q is already scheduled", r.InstanceId)
	}
	if len(c.instances) >= maxInstances {
		return nil, status.Errorf(codes.ResourceExhausted, "the limit of %d instances is reached", maxInstances)
	}
	in := &instance{id: r.InstanceId, definition: r.Definition}
	c.instances[in.id] = in
	c.unassigned = append(c.unassigned, in)
	c.sendInstance(in.id, common.ResourceStatus_PENDING)
	c.assign()
	return &emptypb.Empty{}, nil
}

// destroy sends the DESTROY of an instance to the worker that has it.
func (s *Service) destroy(id string) error {
	in := s.instances[id]
	if in == nil {
		return status.Errorf(codes.NotFound, "instance %q does not exist", id)
	}
	in.destroyed = true
	if in.host == "" {
		delete(s.instances, id)
		s.sendInstance(id, common.ResourceStatus_TERMINATED)
		return nil
	}
	s.sendInstance(id, common.ResourceStatus_DESTROYING)
	if w := s.workers[in.host]; w != nil {
		w.give(in, common.WorkloadRequestKind_DESTROY)
	}
	return nil
}

// assign assigns the waiting instances to the least loaded workers. Among equally loaded
// workers, the one with the lowest turn is next.
func (s *Service) assign() {
	for len(s.unassigned) > 0 && len(s.workers) > 0 {
		in := s.unassigned[0]
		s.unassigned = s.unassigned[1:]
		if in.destroyed {
			continue
		}
		w := s.next()
		s.turn++
		w.turn = s.turn
		w.load++
		in.host = w.host
		s.sendInstance(in.id, common.ResourceStatus_CREATING)
		w.give(in, common.WorkloadRequestKind_CREATE)
	}
}

func (s *Service) next() *connection {
	var best *connection
	for _, w := range s.workers {
		if best == nil || w.load < best.load || w.load == best.load && before(w, best) {
			best = w
		}
	}
	return best
}

func before(a, b *connection) bool {
	return a.turn < b.turn || a.turn == b.turn && a.host < b.host
}

func (w *connection) give(in *instance, action common.WorkloadRequestKind) {
	w.orders = append(w.orders, &worker.InstanceScheduling{InstanceId: in.id, Definition: in.definition, Action: action})
	w.ready.Wake()
}

// GetStatusUpdates streams the workers' statuses to one controller at a time.
func (c *controllerServer) GetStatusUpdates(_ *emptypb.Empty, stream grpc.ServerStreamingServer[common.WorkerStatus]) error {
	if !c.subscribe() {
		return status.Error(codes.AlreadyExists, "another controller is already subscribed")
	}
	defer c.unsubscribe()
	// The headers confirm the subscription to the controller before there is an update.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		m, key := c.nextUpdate()
		if m == nil {
			select {
			case <-c.updated:
				continue
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
		if err := stream.Send(m); err != nil {
			c.unsent(key, m)
			return err
		}
	}
}

func (s *Service) subscribe() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscribed {
		return false
	}
	s.subscribed = true
	return true
}

func (s *Service) unsubscribe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribed = false
	// The token that the last subscriber took may have been for updates that it did not send.
	s.updated.Wake()
}

func (s *Service) nextUpdate() (*common.WorkerStatus, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) == 0 {
		s.order = nil
		return nil, ""
	}
	key := s.order[0]
	s.order = s.order[1:]
	m := s.updates[key]
	delete(s.updates, key)
	return m, key
}

// unsent puts an update back, unless a newer one has arrived.
func (s *Service) unsent(key string, m *common.WorkerStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.updates[key] == nil {
		s.update(key, m)
	}
}

// update queues a status for the controller. A newer status of the same subject replaces an
// older one.
func (s *Service) update(key string, m *common.WorkerStatus) {
	if s.updates[key] == nil {
		if len(s.order) >= 2*maxInstances {
			return
		}
		s.order = append(s.order, key)
	}
	s.updates[key] = m
	s.updated.Wake()
}

// sendInstance reports a status of an instance that the scheduler itself sets.
func (s *Service) sendInstance(id string, is common.ResourceStatus) {
	s.update("instance/"+id, &common.WorkerStatus{
		Identifier: id,
		Status:     &common.WorkerStatus_Instance{Instance: &common.InstanceMetric{Status: is, InstanceId: id}},
	})
}

// Register serves a worker until it disconnects.
func (w *workerServer) Register(r *common.WorkerRegistration, stream grpc.ServerStreamingServer[worker.InstanceScheduling]) error {
	if r.Hostname == "" {
		return status.Error(codes.FailedPrecondition, "hostname is missing")
	}
	c := w.connect(r.Hostname)
	if c == nil {
		return status.Errorf(codes.AlreadyExists, "worker %q is already connected", r.Hostname)
	}
	defer w.disconnect(c)
	// The headers confirm the registration to the worker before there is work.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		m := w.nextOrder(c)
		if m == nil {
			select {
			case <-c.ready:
				continue
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
}

// connect admits a worker. It returns nil if a worker of that name is connected. A worker that
// reconnects receives the DESTROY requests that arrived in the meantime.
func (s *Service) connect(host string) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.workers[host] != nil {
		return nil
	}
	c := &connection{host: host, ready: wakeup.New()}
	s.workers[host] = c
	for _, in := range s.instances {
		if in.host != host {
			continue
		}
		c.load++
		if in.destroyed {
			c.give(in, common.WorkloadRequestKind_DESTROY)
		}
	}
	s.log.Info("legacy worker connected", "node", host)
	s.sendWorker(host, common.ResourceStatus_RUNNING)
	s.assign()
	return c
}

// disconnect removes a worker. Instances that were not yet sent to it go to another worker.
func (s *Service) disconnect(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.workers, c.host)
	for _, order := range c.orders {
		in := s.instances[order.InstanceId]
		if in != nil && order.Action == common.WorkloadRequestKind_CREATE && !in.destroyed {
			in.host = ""
			s.unassigned = append(s.unassigned, in)
			s.sendInstance(in.id, common.ResourceStatus_PENDING)
		}
	}
	s.log.Info("legacy worker disconnected", "node", c.host)
	s.sendWorker(c.host, common.ResourceStatus_UNKNOWN)
	s.assign()
}

func (s *Service) sendWorker(host string, is common.ResourceStatus) {
	s.update("worker/"+host, &common.WorkerStatus{
		Identifier: host,
		Status:     &common.WorkerStatus_Worker{Worker: &common.WorkerMetric{Status: is}},
	})
}

func (s *Service) nextOrder(c *connection) *worker.InstanceScheduling {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(c.orders) == 0 {
		return nil
	}
	m := c.orders[0]
	c.orders = c.orders[1:]
	return m
}

// SendStatusUpdates handles the statuses of a worker until the worker ends the stream.
func (w *workerServer) SendStatusUpdates(stream grpc.ClientStreamingServer[common.WorkerStatus, emptypb.Empty]) error {
	address := addressOf(stream.Context())
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&emptypb.Empty{})
		}
		if err != nil {
			return err
		}
		if m.HostAddress == nil && address != "" {
			m.HostAddress = &address
		}
		w.take(m)
	}
}

func addressOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return ""
	}
	return host
}

// take passes a status on. It drops an empty status and a status of an unknown instance,
// because either would crash an old controller.
func (s *Service) take(m *common.WorkerStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch x := m.Status.(type) {
	case *common.WorkerStatus_Instance:
		id := x.Instance.GetInstanceId()
		in := s.instances[id]
		if in == nil {
			s.log.Warn("a legacy worker reported an unknown instance", "node", m.Identifier, "instance", id)
			return
		}
		if x.Instance.Status == common.ResourceStatus_TERMINATED {
			s.forget(in)
		}
		s.update("instance/"+id, m)
	case *common.WorkerStatus_Worker:
		s.update("worker/"+m.Identifier, m)
	}
}

func (s *Service) forget(in *instance) {
	delete(s.instances, in.id)
	if w := s.workers[in.host]; w != nil {
		w.load--
	}
}
