package scheduler

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/scheduler/inventory"
	"rik.dev/rik/internal/scheduler/validate"
)

// workerService serves the gRPC service Worker on one endpoint.
type workerService struct {
	schedulerv1.UnimplementedWorkerServer
	*Scheduler
	gate gate
}

type workerServer = grpc.BidiStreamingServer[schedulerv1.WorkerMessage, schedulerv1.Order]

// registration is what a node sent when it joined.
type registration struct {
	register *schedulerv1.Register
	status   *rikv1alpha1.NodeStatus
}

// workerStream is one Connect stream.
type workerStream struct {
	registration
	name string
	from string // address of the peer, for people
	// trusted means that the peer is in this process and has no certificate.
	trusted bool
	// uid is the UID of the Node that the peer's certificate was issued for. If it is empty, the
	// certificate counts for the Node of the peer's name.
	uid types.UID
	// unknown is the last result of unknownLocked: the cluster has no record of the Node of the
	// certificate.
	unknown bool
	// hold is the confirmation that the node reports to wait for, or nil.
	hold *schedulerv1.Hold
	// running holds the UIDs of the instances that the node had when it joined.
	running map[string]bool
	out     *outbox[*schedulerv1.Order]
	// seen counts the handled messages.
	seen int64
	// replaced is closed when a newer stream of the node takes over.
	replaced chan struct{}
	// revoked is closed when the Node of the certificate is deleted.
	revoked chan struct{}
}

// Connect serves a node until it disconnects or connects again.
func (w *workerService) Connect(stream workerServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	session, err := newWorkerStream(first.GetRegister())
	if err != nil {
		return err
	}
	session.trusted, session.from = w.gate.trusted, w.gate.from(stream.Context())
	if session.uid, err = w.gate.node(stream.Context(), session.name); err != nil {
		return err
	}
	if err := w.await(stream.Context(), session); err != nil {
		return err
	}
	switch err := w.join(session); {
	case errors.Is(err, errDeleted):
		return w.sendAway(session, stream)
	case errors.Is(err, errTaken):
		return refuseTaken(session.name)
	case err != nil:
		return err
	}
	defer w.leave(session)
	received := make(chan error, 1)
	w.streams.Go(func() { received <- w.listen(session, stream) })
	return w.order(session, stream, received)
}

func newWorkerStream(r *schedulerv1.Register) (*workerStream, error) {
	sent, err := validate.Register(r)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	s := &workerStream{
		name: r.NodeName, running: make(map[string]bool, len(r.Running)),
		out: newOutbox[*schedulerv1.Order](), replaced: make(chan struct{}), revoked: make(chan struct{}),
		registration: registration{register: r, status: sent},
	}
	for _, uid := range r.Running {
		s.running[uid] = true
	}
	s.setHold(r.Hold)
	return s, nil
}

// listen handles the messages of the node.
func (s *Scheduler) listen(session *workerStream, stream workerServer) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		if s.workers[session.name] == session {
			s.handleWorker(session, m)
		}
		session.seen++
		s.mu.Unlock()
	}
}

// order sends the messages in the outbox to the node.
func (s *Scheduler) order(session *workerStream, stream workerServer, received <-chan error) error {
	for {
		k, m, ok := session.out.take()
		if !ok {
			select {
			case <-session.out.ready:
				continue
			case <-session.replaced:
				return errReplaced(session.name)
			case <-session.revoked:
				return s.sendAway(session, stream)
			case err := <-received:
				return err
			}
		}
		if k.kind == aboutAllowed {
			m = s.allowedOrder(session)
		}
		if err := stream.Send(m); err != nil {
			return err
		}
		session.out.done()
		select {
		case <-session.replaced:
			return errReplaced(session.name)
		case <-session.revoked:
			return s.sendAway(session, stream)
		default:
		}
	}
}

func errReplaced(node string) error {
	return status.Errorf(codes.Aborted, "node %q has opened another connection", node)
}

// join admits a node. The same riklet may connect again at any time. Another riklet with the
// same name is refused while the first is connected. Such a riklet is on another machine or has
// a copy of the certificate, and the two would end each other's connections.
func (s *Scheduler) join(session *workerStream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deletedLocked(session) {
		return errDeleted
	}
	if s.takenLocked(session) {
		return errTaken
	}
	old := s.workers[session.name]
	if old != nil && s.inventory.Connectivity(session.name).Connected {
		if why := another(old, session); why != "" {
			s.log.Warn("refused a node", "node", session.name, "from", session.from, "connected", old.from, "err", why)
			return status.Error(codes.AlreadyExists, why)
		}
	}
	if old != nil {
		close(old.replaced)
	}
	s.workers[session.name] = session
	s.registers[session.name] = &session.registration
	session.put(aboutSession, "", &schedulerv1.Order{Term: s.term, Message: &schedulerv1.Order_Admitted{
		Admitted: &schedulerv1.Admitted{HeartbeatMillis: s.heartbeat.Milliseconds(), TimeoutMillis: s.timeout.Milliseconds()},
	}})
	s.inventory.Join(session.name, inventory.Registration{
		Status: session.status, NoNetwork: session.register.NoNetwork, Troubles: troublesOf(session.register.Troubles),
	}, s.refusal(session), s.clock.Now())
	s.forgetObservations(session)
	s.report(s.fullReport(s.inventory.Connectivity(session.name)))
	if s.inventory.Ready() {
		s.allow(session)
		s.confirm(session)
	}
	s.wakeLoop()
	s.log.Info("node connected", "node", session.name, "version", session.register.Version, "running", len(session.running))
	return nil
}

// forgetObservations drops the observations of instances that the node no longer has. A node that
// lost its records counts its observations from the start.
func (s *Scheduler) forgetObservations(session *workerStream) {
	for _, in := range s.inventory.OnNode(session.name) {
		if !session.running[in.UID] && !s.terminated(in.UID) {
			delete(s.seen, in.UID)
		}
	}
}

// another returns a message if a stream belongs to another riklet than the one that is
// connected under its name. The message says what to do. It is empty if the streams are not
// known to differ.
func another(old, next *workerStream) string {
	differ := func(a, b string) bool { return a != "" && b != "" && a != b }
	switch {
	case differ(old.register.MachineId, next.register.MachineId):
		return fmt.Sprintf("another machine is connected as node %q, from %s: give this machine another --node-name", next.name, old.from)
	case differ(old.status.Info.InstallationID, next.status.Info.InstallationID):
		return fmt.Sprintf("another riklet on this machine is connected as node %q, from %s: give this riklet another --node-name", next.name, old.from)
	case old.register.RunId != "" && old.register.RunId != next.register.RunId:
		return nodev1.ConnectedTwice(next.name, old.from)
	}
	return ""
}

func (s *Scheduler) leave(session *workerStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.workers[session.name] != session {
		return
	}
	delete(s.workers, session.name)
	s.inventory.Leave(session.name)
	s.dropRegistration(session.name)
	s.wakeLoop()
	s.log.Info("node disconnected", "node", session.name)
}

// dropRegistration drops the registration of a node that has no stream and is not connected. The
// caller holds mu.
func (s *Scheduler) dropRegistration(name string) {
	if s.workers[name] == nil && !s.inventory.Connectivity(name).Connected {
		delete(s.registers, name)
	}
}

// handleWorker applies one message of a node. The caller holds mu.
func (s *Scheduler) handleWorker(session *workerStream, m *schedulerv1.WorkerMessage) {
	name := session.name
	if wasLost := s.inventory.Seen(name, s.clock.Now()); wasLost {
		s.log.Info("a lost node reports again", "node", name)
		s.report(s.fullReport(s.inventory.Connectivity(name)))
		s.wakeLoop()
	}
	switch x := m.Message.(type) {
	case *schedulerv1.WorkerMessage_Heartbeat:
		validate.Heartbeat(x.Heartbeat)
		s.beat(name, x.Heartbeat)
	case *schedulerv1.WorkerMessage_Observation:
		x.Observation.NodeName = name
		ok, dropped := validate.Observation(x.Observation)
		if dropped != "" {
			s.log.Warn("ignoring the invalid part of an observation", "node", name, "instance", validate.Text(x.Observation.Uid, validate.MaxWord), "dropped", dropped)
		}
		if ok {
			s.observe(x.Observation)
		}
	case *schedulerv1.WorkerMessage_Hold:
		s.held(session, x.Hold)
	}
}

func (s *Scheduler) beat(name string, h *schedulerv1.Heartbeat) {
	if s.inventory.SetDiskPressure(name, h.DiskPressure) {
		s.report(s.briefReport(name))
		s.wakeLoop()
	}
	if s.inventory.SetTroubles(name, troublesOf(h.Troubles)) {
		s.report(s.briefReport(name))
		s.wakeLoop()
	}
	if h.ImagesChanged {
		s.inventory.SetImages(name, h.Images)
	}
	if h.UsedPortsChanged {
		s.inventory.SetUsedPorts(name, usedPorts(h.UsedPorts))
		s.wakeLoop()
	}
}

func (s *Scheduler) briefReport(name string) *schedulerv1.NodeReport {
	c := s.inventory.Connectivity(name)
	return &schedulerv1.NodeReport{Name: name, Connected: c.Connected, DiskPressure: c.DiskPressure, NoNetwork: c.NoNetwork, Hold: s.holdOf(name), Troubles: troubles(c.Troubles)}
}

// allow sends a node its full set, which replaces the orders that are queued for the node.
func (s *Scheduler) allow(session *workerStream) {
	if s.unknownLocked(session) && !session.register.Asks {
		return // The riklet would stop all its instances at once.
	}
	session.out.drop(func(k key, _ *schedulerv1.Order) bool { return k.kind == aboutOrder })
	// The set is built when it is sent, so that it is never stale.
	session.put(aboutAllowed, "", nil)
	for _, in := range s.inventory.OnNode(session.name) {
		if in.Stop != nil {
			s.dispatch(in, !session.running[in.UID] && s.seen[in.UID] == nil)
		}
	}
	for uid, node := range s.removals {
		if in := s.inventory.Instance(uid); in != nil && in.State == inventory.Bound && in.Node == session.name {
			// The instance has become the node's own in the meantime.
			delete(s.removals, uid)
			continue
		}
		if node == session.name || node == "" && session.running[uid] {
			s.execute(session, uid)
		}
	}
}

// allowedOrder builds the current full set of what the node may run. Instances that are being
// stopped are in it as ended, so that the node does not start them. A separate order sets their
// grace period.
func (s *Scheduler) allowedOrder(session *workerStream) *schedulerv1.Order {
	s.mu.Lock()
	defer s.mu.Unlock()
	allowed := &schedulerv1.Allowed{KeepUnknown: s.restored}
	for _, in := range s.inventory.OnNode(session.name) {
		if s.terminated(in.UID) {
			continue
		}
		run := runOf(in)
		run.Ended = in.Ended || in.Stop != nil
		allowed.Instances = append(allowed.Instances, run)
	}
	for uid, node := range s.removals {
		if node == session.name || node == "" && session.running[uid] {
			allowed.Gone = append(allowed.Gone, uid)
		}
	}
	session.out.drop(func(_ key, o *schedulerv1.Order) bool { return o.GetRun() != nil })
	return s.stamp(&schedulerv1.Order{Message: &schedulerv1.Order_Allowed{Allowed: allowed}})
}

// stamp sets the term and the cluster of an order.
func (s *Scheduler) stamp(o *schedulerv1.Order) *schedulerv1.Order {
	o.Term, o.Cluster = s.term, s.cluster
	return o
}

// dispatch orders an instance's node to run it, or to stop it if it has a stop request. A node
// that is not connected gets its full set when it connects. fresh means that the node has never
// received the instance. The node must then confirm the stop all the same.
func (s *Scheduler) dispatch(in *inventory.Instance, fresh bool) {
	session := s.workers[in.Node]
	if session == nil || !s.inventory.Ready() {
		return
	}
	s.metrics.dispatched.Inc()
	if in.Stop != nil {
		stop := *in.Stop
		stop.Force = stop.Force || fresh
		session.out.put(key{aboutOrder, in.UID}, s.stopOrder(in.UID, stop), mergeOrders)
		return
	}
	session.put(aboutOrder, in.UID, s.stamp(&schedulerv1.Order{Message: &schedulerv1.Order_Run{Run: runOf(in)}}))
}

// mergeOrders turns a stop that replaces a queued run into a forced stop. The node never
// received the instance and must confirm the stop all the same.
func mergeOrders(older, newer *schedulerv1.Order) *schedulerv1.Order {
	if older.GetRun() != nil && newer.GetStop() != nil {
		newer.GetStop().Force = true
	}
	return newer
}

func (s *Scheduler) stopOrder(uid string, stop inventory.Stop) *schedulerv1.Order {
	return s.stamp(&schedulerv1.Order{Message: &schedulerv1.Order_Stop{
		Stop: &schedulerv1.StopOrder{Uid: uid, GraceSeconds: stop.GraceSeconds, Force: stop.Force},
	}})
}

func runOf(in *inventory.Instance) *schedulerv1.Run {
	return &schedulerv1.Run{
		Uid: in.UID, Namespace: in.Namespace, Name: in.Name, Workload: in.Workload, Revision: in.Revision, Ended: in.Ended,
	}
}

func (w *workerStream) put(k kind, id string, m *schedulerv1.Order) {
	w.out.put(key{k, id}, m, nil)
}

// forgetOrder drops the queued order of an instance.
func (w *workerStream) forgetOrder(uid string) {
	w.out.drop(func(k key, _ *schedulerv1.Order) bool { return k == key{aboutOrder, uid} })
}
