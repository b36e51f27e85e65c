package scheduler

import (
	"context"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
)

// harness is a scheduler with peers in the same process and a clock that does not advance by
// itself. Both ends of every stream count messages, so that settle can detect when all messages
// have been handled. (testing/synctest could do this too. With the race detector it sometimes
// fails with a check of the detector itself, see golang/go issue 78156.)
type harness struct {
	t           *testing.T
	s           *Scheduler
	clock       *clocktesting.FakeClock
	parties     []counted
	controllers *bufconn.Listener
	workers     *bufconn.Listener
	stop        func()
}

// newHarness starts a scheduler for one test.
func newHarness(t *testing.T) *harness {
	t.Helper()
	t.Parallel()
	h := &harness{t: t, clock: clocktesting.NewFakeClock(time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC))}
	h.start()
	t.Cleanup(func() { h.stop() })
	return h
}

// start creates a new scheduler with an empty state.
func (h *harness) start() {
	h.t.Helper()
	h.controllers, h.workers = bufconn.Listen(1<<20), bufconn.Listen(1<<20)
	s, err := New(Config{
		Controllers: []Endpoint{{Listener: h.controllers, Trusted: true}},
		Workers:     []Endpoint{{Listener: h.workers, Trusted: true}},
		Name:        "test",
		Clock:       h.clock,
	})
	if err != nil {
		h.t.Fatalf("New() = %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	h.s = s
	h.stop = func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Errorf("Run() = %v", err)
		}
		h.stop = func() {}
	}
}

// counted is a peer whose messages are counted.
type counted interface {
	// quiet reports whether all messages between the peer and the scheduler have been sent and
	// handled. The caller holds the scheduler's lock.
	quiet(s *Scheduler) bool
}

// settle waits until the scheduler and its peers have no work left.
func (h *harness) settle() {
	h.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !h.quiet() {
		if time.Now().After(deadline) {
			h.t.Fatal("the scheduler and its peers have not come to rest")
		}
		runtime.Gosched()
	}
}

func (h *harness) quiet() bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	for _, p := range h.parties {
		if !p.quiet(h.s) {
			return false
		}
	}
	return h.s.answered.Load() == h.s.asked.Load()
}

// later advances the clock.
func (h *harness) later(d time.Duration) {
	h.t.Helper()
	h.settle()
	h.clock.Step(d)
	h.s.wakeLoop()
	h.settle()
}

func dial(t *testing.T, l *bufconn.Listener) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///bufconn",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
	)
	if err != nil {
		t.Fatalf("dialing: %v", err)
	}
	return conn
}

// party is the client's end of a stream. It records the received messages.
type party[Req, Res any] struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[Req, Res]
	// id distinguishes the scheduler's end of this stream from those of other streams.
	id string

	mu        sync.Mutex
	received  []*Res
	err       error
	listening bool
	closed    bool
	// sent and got count messages, without the first message, which introduces the party.
	sent, got int64
}

// listen receives messages until the stream ends.
func (p *party[Req, Res]) listen() {
	p.mu.Lock()
	p.listening = true
	p.mu.Unlock()
	go p.read()
}

func (p *party[Req, Res]) read() {
	for {
		m, err := p.stream.Recv()
		p.mu.Lock()
		if err != nil {
			p.err = err
			p.mu.Unlock()
			return
		}
		p.received = append(p.received, m)
		p.got++
		p.mu.Unlock()
	}
}

func (p *party[Req, Res]) send(m *Req) {
	p.t.Helper()
	p.introduce(m)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent++
}

// introduce sends the first message.
func (p *party[Req, Res]) introduce(m *Req) {
	p.t.Helper()
	if err := p.stream.Send(m); err != nil {
		p.t.Errorf("sending %v: %v", m, err)
	}
}

// atRest compares the counts of both ends. There is no other end if the scheduler does not have
// the stream, or no longer has it.
func (p *party[Req, Res]) atRest(there bool, seen int64, out func() (waiting int, taken, delivered int64)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.err != nil {
		return !there
	}
	if !there || seen != p.sent {
		return false
	}
	waiting, taken, delivered := out()
	return !p.listening || waiting == 0 && taken == delivered && taken == p.got
}

// counts returns the function by which atRest reads an outbox.
func counts[M any](o *outbox[M]) func() (waiting int, taken, delivered int64) {
	return func() (int, int64, int64) {
		waiting := o.waiting()
		o.mu.Lock()
		defer o.mu.Unlock()
		return waiting, o.taken, o.delivered
	}
}

// ended returns the error with which the stream ended, or nil while the stream is open.
func (p *party[Req, Res]) ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// take returns the messages received since the last call.
func (p *party[Req, Res]) take() []*Res {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.received
	p.received = nil
	return out
}

// controllerPeer acts as the controller.
type controllerPeer struct {
	party[schedulerv1.SyncRequest, schedulerv1.SyncResponse]
	client schedulerv1.SchedulerClient
	hangUp func()
}

func (c *controllerPeer) quiet(s *Scheduler) bool {
	if s.controller == nil || s.controller.name != c.id {
		return c.atRest(false, 0, nil)
	}
	return c.atRest(true, s.controller.seen, counts(s.controller.out))
}

func (c *controllerPeer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.hangUp()
}

func (h *harness) controller(term int64) *controllerPeer {
	h.t.Helper()
	conn := dial(h.t, h.controllers)
	ctx, cancel := context.WithCancel(context.Background())
	c := &controllerPeer{client: schedulerv1.NewSchedulerClient(conn)}
	stream, err := c.client.Sync(ctx)
	if err != nil {
		h.t.Fatalf("Sync() = %v", err)
	}
	c.t, c.stream, c.id = h.t, stream, fmt.Sprint("controller-", len(h.parties))
	c.hangUp = sync.OnceFunc(func() { cancel(); _ = conn.Close() })
	h.t.Cleanup(c.close)
	c.introduce(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Hello{
		Hello: &schedulerv1.Hello{Term: term, Controller: c.id},
	}})
	h.parties = append(h.parties, c)
	return c
}

// joinController connects a controller that has some nodes and one template, "w", whose
// instances need one core. The controller receives its messages.
func (h *harness) joinController(term int64, nodes ...string) *controllerPeer {
	h.t.Helper()
	c := h.controller(term)
	c.listen()
	for _, name := range nodes {
		c.node(name)
	}
	c.template("ns/w", &rikv1alpha1.InstanceTemplate{Containers: []rikv1alpha1.Container{{
		Name: "main", Image: "img", Resources: rikv1alpha1.Resources{
			Requests: rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("1")},
		},
	}}})
	return c
}

func (c *controllerPeer) node(name string) {
	c.t.Helper()
	object, err := (&rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{rikv1alpha1.LabelHostname: name},
	}}).Marshal()
	if err != nil {
		c.t.Fatalf("encoding node: %v", err)
	}
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Node{Node: &schedulerv1.Node{Name: name, Object: object}}})
}

func (c *controllerPeer) template(name string, t *rikv1alpha1.InstanceTemplate) {
	c.t.Helper()
	object, err := t.Marshal()
	if err != nil {
		c.t.Fatalf("encoding template: %v", err)
	}
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Template{
		Template: &schedulerv1.Template{Revision: name, Object: object},
	}})
}

func instanceOf(uid, node string) *schedulerv1.Instance {
	return &schedulerv1.Instance{Uid: uid, Namespace: "ns", Name: "i-" + uid, Workload: "w", Revision: "w", NodeName: node}
}

func (c *controllerPeer) pending(uids ...string) {
	for _, uid := range uids {
		c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Pending{Pending: instanceOf(uid, "")}})
	}
}

func (c *controllerPeer) bound(uid, node string) {
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Bound{Bound: instanceOf(uid, node)}})
}

func (c *controllerPeer) synced() {
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Synced{Synced: &schedulerv1.Synced{}}})
}

func (c *controllerPeer) ack(uid string, durable bool) {
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Ack{Ack: &schedulerv1.BindingAck{Uid: uid, Durable: durable}}})
}

func (c *controllerPeer) stop(uid string) {
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Stop{Stop: &schedulerv1.Stop{Uid: uid, GraceSeconds: 7}}})
}

func (c *controllerPeer) gone(uid string) {
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Gone{Gone: &schedulerv1.InstanceGone{Uid: uid}}})
}

// news is what a controller received, sorted by kind.
type news struct {
	bindings     map[string]string
	unplaced     map[string]string
	observations map[string]*schedulerv1.Observation
	nodes        map[string]*schedulerv1.NodeReport
	displaced    map[string]string
}

func (c *controllerPeer) news() news {
	n := news{
		bindings: map[string]string{}, unplaced: map[string]string{}, displaced: map[string]string{},
		observations: map[string]*schedulerv1.Observation{}, nodes: map[string]*schedulerv1.NodeReport{},
	}
	for _, m := range c.take() {
		switch x := m.Message.(type) {
		case *schedulerv1.SyncResponse_Binding:
			n.bindings[x.Binding.Uid] = x.Binding.NodeName
		case *schedulerv1.SyncResponse_Unplaced:
			n.unplaced[x.Unplaced.Uid] = x.Unplaced.Reason
		case *schedulerv1.SyncResponse_Observation:
			n.observations[x.Observation.Uid] = x.Observation
		case *schedulerv1.SyncResponse_Node:
			n.nodes[x.Node.Name] = x.Node
		case *schedulerv1.SyncResponse_Displace:
			n.displaced[x.Displace.Uid] = x.Displace.ForUid
		}
	}
	return n
}

// ackAll acknowledges every proposed binding as durable and returns the node of each instance.
func (c *controllerPeer) ackAll(n news) map[string]string {
	for _, uid := range slices.Sorted(maps.Keys(n.bindings)) {
		c.ack(uid, true)
	}
	return n.bindings
}

// workerPeer acts as a riklet.
type workerPeer struct {
	party[schedulerv1.WorkerMessage, schedulerv1.Order]
	name   string
	hangUp func()
}

func (w *workerPeer) quiet(s *Scheduler) bool {
	session := s.workers[w.name]
	if session == nil || session.register.BootId != w.id {
		return w.atRest(false, 0, nil)
	}
	return w.atRest(true, session.seen, counts(session.out))
}

func (w *workerPeer) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.hangUp()
}

func register(t *testing.T, name string, running ...string) *schedulerv1.Register {
	t.Helper()
	encoded, err := (&rikv1alpha1.NodeStatus{Allocatable: rikv1alpha1.ResourceList{
		rikv1alpha1.ResourceCPU:    resource.MustParse("100"),
		rikv1alpha1.ResourceMemory: resource.MustParse("8Gi"),
	}}).Marshal()
	if err != nil {
		t.Fatalf("encoding status: %v", err)
	}
	return &schedulerv1.Register{
		NodeName: name, MachineId: "machine of " + name, Version: "test", Status: encoded,
		Labels: map[string]string{"asked": "for"}, Running: running,
	}
}

func (h *harness) connect(r *schedulerv1.Register) *workerPeer {
	h.t.Helper()
	conn := dial(h.t, h.workers)
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := schedulerv1.NewWorkerClient(conn).Connect(ctx)
	if err != nil {
		h.t.Fatalf("Connect() = %v", err)
	}
	w := &workerPeer{name: r.NodeName}
	w.t, w.stream, w.id = h.t, stream, fmt.Sprint("boot-", len(h.parties))
	w.hangUp = sync.OnceFunc(func() { cancel(); _ = conn.Close() })
	h.t.Cleanup(w.close)
	r.BootId = w.id
	w.introduce(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Register{Register: r}})
	h.parties = append(h.parties, w)
	return w
}

// join connects a riklet that receives its orders.
func (h *harness) join(name string, running ...string) *workerPeer {
	h.t.Helper()
	w := h.connect(register(h.t, name, running...))
	w.listen()
	return w
}

func (w *workerPeer) beat() {
	w.send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Heartbeat{Heartbeat: &schedulerv1.Heartbeat{}}})
}

func (w *workerPeer) observe(uid string, sequence int64, phase rikv1alpha1.InstancePhase) {
	w.send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Observation{
		Observation: &schedulerv1.Observation{Uid: uid, Sequence: sequence, Phase: string(phase), NodeName: "a lie"},
	}})
}

// orders is what a node received.
type orders struct {
	first    []string // kinds, in order
	allowed  map[string]bool
	runs     map[string]bool
	stops    map[string]*schedulerv1.StopOrder
	acks     map[string]int64
	lastTerm int64
}

func (w *workerPeer) orders() orders {
	o := orders{runs: map[string]bool{}, stops: map[string]*schedulerv1.StopOrder{}, acks: map[string]int64{}}
	for _, m := range w.take() {
		o.lastTerm = m.Term
		switch x := m.Message.(type) {
		case *schedulerv1.Order_Admitted:
			o.first = append(o.first, "admitted")
		case *schedulerv1.Order_Allowed:
			o.first = append(o.first, "allowed")
			o.allowed = map[string]bool{}
			for _, run := range x.Allowed.Instances {
				o.allowed[run.Uid] = !run.Ended
			}
		case *schedulerv1.Order_Run:
			o.first = append(o.first, "run")
			o.runs[x.Run.Uid] = true
		case *schedulerv1.Order_Stop:
			o.first = append(o.first, "stop")
			o.stops[x.Stop.Uid] = x.Stop
		case *schedulerv1.Order_Ack:
			o.acks[x.Ack.Uid] = x.Ack.Sequence
		}
	}
	return o
}
