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

// harness is a scheduler with peers in the same process and a clock that stands
// still. Both ends of every stream count messages, so that settle knows when all
// has been said. (testing/synctest would do it too, but with the race detector
// it ends now and then with a failed check of the detector's own, golang/go
// issue 78156.)
type harness struct {
	t           *testing.T
	s           *Scheduler
	clock       *clocktesting.FakeClock
	parties     []counted
	controllers *bufconn.Listener
	workers     *bufconn.Listener
	stop        func()
}

// newHarness starts a scheduler of the test's own.
func newHarness(t *testing.T) *harness {
	t.Helper()
	t.Parallel()
	h := &harness{t: t, clock: clocktesting.NewFakeClock(time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC))}
	h.start()
	t.Cleanup(func() { h.stop() })
	return h
}

// start makes a new scheduler, with nothing of an earlier one.
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

// counted is a party whose messages are counted.
type counted interface {
	// quiet says whether everything between the party and the scheduler has been
	// said and handled. It is called with the scheduler's lock held.
	quiet(s *Scheduler) bool
}

// settle waits until nobody has anything left to do but wait.
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

// later lets time pass.
func (h *harness) later(d time.Duration) {
	h.t.Helper()
	h.settle()
	h.clock.Step(d)
	h.s.poke()
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

// party is the client's end of a stream: it records what comes.
type party[Req, Res any] struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[Req, Res]
	// id tells the scheduler's end of the stream from that of others.
	id string

	mu        sync.Mutex
	received  []*Res
	err       error
	listening bool
	closed    bool
	// sent and got count messages, without the first that introduces the party.
	sent, got int64
}

// listen reads what comes until the stream ends.
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

// atRest compares the counts of both ends. There is no other end when the
// scheduler does not know the stream (any more).
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

// counts is what atRest needs of an outbox.
func counts[M any](o *outbox[M]) func() (waiting int, taken, delivered int64) {
	return func() (int, int64, int64) {
		waiting := o.waiting()
		o.mu.Lock()
		defer o.mu.Unlock()
		return waiting, o.taken, o.delivered
	}
}

// ended is the error with which the stream ended; nil while it lasts.
func (p *party[Req, Res]) ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// take returns what came since the last call.
func (p *party[Req, Res]) take() []*Res {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.received
	p.received = nil
	return out
}

// controllerPeer plays the controller.
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

// joinController is a controller that knows some nodes and has one template,
// "w", of which an instance needs a core, and reads what it is sent.
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

// news is what a controller was told, sorted by kind.
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

// ackAll makes every proposal durable and returns where each went.
func (c *controllerPeer) ackAll(n news) map[string]string {
	for _, uid := range slices.Sorted(maps.Keys(n.bindings)) {
		c.ack(uid, true)
	}
	return n.bindings
}

// workerPeer plays a riklet.
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

// join is a riklet that reads its orders.
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

// orders is what a node was told.
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
