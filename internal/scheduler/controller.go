package scheduler

import (
	"context"
	"errors"
	"io"
	"maps"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/scheduler/inventory"
)

// controllerService serves the gRPC service Scheduler on one endpoint.
type controllerService struct {
	schedulerv1.UnimplementedSchedulerServer
	*Scheduler
	gate gate
}

// controllerStream is one Sync stream.
type controllerStream struct {
	name string
	term int64
	out  *outbox[*schedulerv1.SyncResponse]
	// seen counts the handled messages.
	seen int64
	// replaced is closed when a newer stream takes over.
	replaced chan struct{}
}

// Sync serves a controller until the controller disconnects or another one takes over.
func (c *controllerService) Sync(stream grpc.BidiStreamingServer[schedulerv1.SyncRequest, schedulerv1.SyncResponse]) error {
	if err := c.gate.controller(stream.Context()); err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return status.Error(codes.InvalidArgument, "the first message must be Hello")
	}
	session, err := c.begin(hello)
	if err != nil {
		return err
	}
	defer c.end(session)
	received := make(chan error, 1)
	c.streams.Go(func() { received <- c.receive(session, stream) })
	return c.send(session, stream, received)
}

// receive handles the messages of the controller.
func (s *Scheduler) receive(session *controllerStream, stream grpc.BidiStreamingServer[schedulerv1.SyncRequest, schedulerv1.SyncResponse]) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		if s.controller == session {
			s.handle(m)
		}
		s.wakeLoop()
		session.seen++
		s.mu.Unlock()
	}
}

// send sends the messages in the outbox to the controller.
func (s *Scheduler) send(
	session *controllerStream, stream grpc.BidiStreamingServer[schedulerv1.SyncRequest, schedulerv1.SyncResponse], received <-chan error,
) error {
	for {
		_, m, ok := session.out.take()
		if !ok {
			select {
			case <-session.out.ready:
				continue
			case <-session.replaced:
				return status.Error(codes.Aborted, "another controller has become active")
			case err := <-received:
				return err
			}
		}
		if err := stream.Send(m); err != nil {
			return err
		}
		if o := m.GetObservation(); o != nil {
			s.handed(o)
		}
		session.out.done()
		select {
		case <-session.replaced:
			return status.Error(codes.Aborted, "another controller has become active")
		default:
		}
	}
}

// begin makes a controller the active one. It refuses a controller whose term is lower than a
// term that was seen before.
func (s *Scheduler) begin(hello *schedulerv1.Hello) (*controllerStream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hello.Term < s.term {
		return nil, status.Errorf(codes.FailedPrecondition, "term %d has ended: term %d has begun", hello.Term, s.term)
	}
	session := &controllerStream{
		name: hello.Controller, term: hello.Term,
		out: newOutbox[*schedulerv1.SyncResponse](), replaced: make(chan struct{}),
	}
	if s.controller != nil {
		close(s.controller.replaced)
	}
	s.controller, s.term, s.cluster, s.restored = session, hello.Term, hello.Cluster, hello.GetRestored()
	s.inventory.Begin()
	// The controller sends the deleted instances again for which it still has tombstones.
	clear(s.removals)
	session.put(aboutSession, "", &schedulerv1.SyncResponse{Message: &schedulerv1.SyncResponse_Welcome{
		Welcome: &schedulerv1.Welcome{Scheduler: s.config.Name},
	}})
	s.log.Info("controller connected", "controller", hello.Controller, "term", hello.Term)
	return session, nil
}

// end handles the end of a stream.
func (s *Scheduler) end(session *controllerStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.controller != session {
		return
	}
	s.controller = nil
	s.inventory.Interrupt()
	s.log.Info("controller disconnected", "controller", session.name, "term", session.term)
}

// handle applies one message of the controller. The caller holds mu.
func (s *Scheduler) handle(m *schedulerv1.SyncRequest) {
	switch x := m.Message.(type) {
	case *schedulerv1.SyncRequest_Node:
		s.setNode(x.Node)
	case *schedulerv1.SyncRequest_NodeGone:
		s.removeNode(x.NodeGone.Name)
	case *schedulerv1.SyncRequest_Template:
		s.setTemplate(x.Template)
	case *schedulerv1.SyncRequest_TemplateGone:
		s.inventory.RemoveTemplate(x.TemplateGone.Revision)
	case *schedulerv1.SyncRequest_Pending:
		s.inventory.SetPending(factsOf(x.Pending))
	case *schedulerv1.SyncRequest_Bound:
		s.setBound(x.Bound)
	case *schedulerv1.SyncRequest_Gone:
		s.setGone(x.Gone.Uid)
	case *schedulerv1.SyncRequest_Ack:
		if in := s.inventory.Ack(x.Ack.Uid, x.Ack.Durable); in != nil {
			s.dispatch(in, true)
		}
	case *schedulerv1.SyncRequest_Stop:
		s.setStop(x.Stop)
	case *schedulerv1.SyncRequest_Synced:
		s.synced()
	case *schedulerv1.SyncRequest_DeletedNode:
		s.forgetCertificates(types.UID(x.DeletedNode.Uid))
	case *schedulerv1.SyncRequest_Tombstone:
		s.orderRemoval(x.Tombstone.Uid, x.Tombstone.NodeName)
	}
}

func factsOf(in *schedulerv1.Instance) inventory.Facts {
	return inventory.Facts{
		UID: in.Uid, Namespace: in.Namespace, Name: in.Name, Workload: in.Workload, Revision: in.Revision,
		Labels: in.Labels, CreatedUnixNano: in.CreatedUnixNanos, Node: in.NodeName, Ended: in.Ended,
	}
}

func (s *Scheduler) setNode(m *schedulerv1.Node) {
	object := &rikv1alpha1.Node{}
	if err := object.Unmarshal(m.Object); err != nil {
		s.log.Error("a node from the controller cannot be read", "node", m.Name, "err", err)
		return
	}
	object.Name = m.Name
	if old := s.inventory.NodeObject(m.Name); old != nil && old.UID != object.UID {
		s.deleteNode(old) // and created again under the same name
	}
	s.inventory.SetNode(object, s.clock.Now())
	if session := s.workers[m.Name]; session != nil && s.inventory.Ready() && !s.disconnectDeleted(m.Name) {
		s.reconsider(session)
		s.confirm(session)
	}
}

func (s *Scheduler) removeNode(name string) {
	if old := s.inventory.NodeObject(name); old != nil {
		s.deleteNode(old)
	}
	s.inventory.RemoveNode(name)
	maps.DeleteFunc(s.removals, func(_, node string) bool { return node == name })
	s.disconnectDeleted(name)
	s.dropRegistration(name)
}

func (s *Scheduler) setTemplate(m *schedulerv1.Template) {
	template := &rikv1alpha1.InstanceTemplate{}
	if err := template.Unmarshal(m.Object); err != nil {
		s.log.Error("a revision from the controller cannot be read", "revision", m.Revision, "err", err)
		return
	}
	s.inventory.SetTemplate(m.Revision, template)
}

func (s *Scheduler) setBound(m *schedulerv1.Instance) {
	facts := factsOf(m)
	// The node may have reported that the instance has terminated before the controller could
	// write that. The node must not get the instance again.
	facts.Ended = facts.Ended || s.terminated(facts.UID)
	in, news := s.inventory.SetBound(facts)
	// During a listing the scheduler dispatches no single instances: Synced sends every node its
	// full set.
	if news && s.inventory.Ready() && !in.Ended {
		s.dispatch(in, false)
	}
}

// setGone removes an instance. If its node may still have parts of it, the node is ordered to
// remove them.
func (s *Scheduler) setGone(uid string) {
	in := s.inventory.Remove(uid)
	left := s.terminated(uid)
	delete(s.seen, uid)
	if in != nil && in.State == inventory.Bound && !left {
		s.orderRemoval(uid, in.Node)
	}
}

func (s *Scheduler) setStop(m *schedulerv1.Stop) {
	in := s.inventory.SetStop(m.Uid, inventory.Stop{GraceSeconds: m.GraceSeconds, Force: m.Force})
	if in == nil {
		s.log.Debug("the controller stops an unknown instance", "instance", m.Uid)
		return
	}
	// A proposed instance waits for its acknowledgment: only then is it certain whether a node
	// will get it.
	if in.State == inventory.Bound {
		s.dispatch(in, false)
	}
}

// synced ends the listing. It sends every node its full set, and sends the controller the
// scheduler's state of nodes and instances.
func (s *Scheduler) synced() {
	gone := s.inventory.Synced()
	for _, in := range gone {
		delete(s.seen, in.UID)
	}
	for _, session := range s.workers {
		if s.disconnectDeleted(session.name) {
			continue
		}
		s.inventory.SetRefusal(session.name, s.refusal(session))
		s.allow(session)
		s.confirm(session)
	}
	for name := range s.registers {
		s.dropRegistration(name)
	}
	for _, c := range s.inventory.Connectivities() {
		s.report(s.fullReport(c))
	}
	s.resendObservations()
	early := s.early
	s.early = map[string]*schedulerv1.Observation{}
	for _, o := range early {
		s.observe(o)
	}
	stats := s.inventory.Stats()
	s.log.Info("the controller has sent its complete state", "term", s.term, "nodes", stats.ReadyNodes, "pending", stats.Pending, "bound", stats.Bound)
}

func (s *Scheduler) fullReport(c inventory.Connectivity) *schedulerv1.NodeReport {
	r := &schedulerv1.NodeReport{Name: c.Name, Connected: c.Connected, DiskPressure: c.DiskPressure, NoNetwork: c.NoNetwork, Hold: s.holdOf(c.Name), Troubles: troubles(c.Troubles)}
	if known := s.registers[c.Name]; known != nil && c.Connected {
		r.Info, r.Labels, r.Taints = known.register.Status, known.register.Labels, known.register.Taints
	}
	return r
}

// report sends the controller a report about a node. Fields of an older report that is still
// queued stay, unless the newer report sets them.
func (s *Scheduler) report(r *schedulerv1.NodeReport) {
	if s.controller == nil {
		return
	}
	m := &schedulerv1.SyncResponse{Message: &schedulerv1.SyncResponse_Node{Node: r}}
	s.controller.out.put(key{aboutNode, r.Name}, m, mergeReports)
}

func mergeReports(older, newer *schedulerv1.SyncResponse) *schedulerv1.SyncResponse {
	a, b := older.GetNode(), newer.GetNode()
	if len(b.Info) == 0 {
		b.Info, b.Labels, b.Taints = a.Info, a.Labels, a.Taints
	}
	return newer
}

func (c *controllerStream) put(k kind, id string, m *schedulerv1.SyncResponse) {
	c.out.put(key{k, id}, m, nil)
}

// send queues the decisions of a round for the controller.
func (c *controllerStream) send(r inventory.Result) {
	for _, b := range r.Bindings {
		c.put(aboutBinding, b.UID, &schedulerv1.SyncResponse{Message: &schedulerv1.SyncResponse_Binding{
			Binding: &schedulerv1.Binding{Uid: b.UID, NodeName: b.Node, HostPorts: b.HostPorts},
		}})
	}
	for _, u := range r.Unplaced {
		c.put(aboutUnplaced, u.UID, &schedulerv1.SyncResponse{Message: &schedulerv1.SyncResponse_Unplaced{
			Unplaced: &schedulerv1.Unplaced{Uid: u.UID, Reason: u.Reason, Message: u.Message},
		}})
	}
	for _, d := range r.Displaced {
		c.put(aboutDisplaced, d.UID, &schedulerv1.SyncResponse{Message: &schedulerv1.SyncResponse_Displace{
			Displace: &schedulerv1.Displace{Uid: d.UID, ForUid: d.For},
		}})
	}
}

// Explain returns why an instance is on its node, or why it has no node.
func (c *controllerService) Explain(ctx context.Context, r *schedulerv1.ExplainRequest) (*schedulerv1.Explanation, error) {
	if err := c.gate.controller(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.inventory.Ready() {
		return nil, status.Error(codes.Unavailable, "the scheduler waits for the complete state of the controller")
	}
	e, ok := c.inventory.Explain(r.Uid)
	if !ok {
		return nil, status.Errorf(codes.NotFound, "the scheduler does not have instance %q", r.Uid)
	}
	out := &schedulerv1.Explanation{NodeName: e.Node, Summary: e.Summary}
	for _, v := range e.Results {
		out.Nodes = append(out.Nodes, &schedulerv1.NodeVerdict{
			Name: v.Node, RejectedBy: v.Filter, Reason: v.Reason, Score: v.Score, Scores: v.Scores,
		})
	}
	return out, nil
}
