package connection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"rik.dev/rik/internal/rpc/schedulerv1"
)

// peer serves one service in memory. It can go down and come up again.
type peer struct {
	register func(*grpc.Server)

	mu       sync.Mutex
	server   *grpc.Server
	listener *bufconn.Listener
	done     chan struct{}
}

func (p *peer) up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	listener, server, done := bufconn.Listen(1<<16), grpc.NewServer(), make(chan struct{})
	p.register(server)
	p.server, p.listener, p.done = server, listener, done
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
}

func (p *peer) down() {
	p.mu.Lock()
	server, done := p.server, p.done
	p.server, p.listener = nil, nil
	p.mu.Unlock()
	if server != nil {
		server.Stop()
		<-done
	}
}

func (p *peer) dial(context.Context) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///peer", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			p.mu.Lock()
			listener := p.listener
			p.mu.Unlock()
			if listener == nil {
				return nil, errors.New("connection refused")
			}
			return listener.DialContext(ctx)
		}))
}

// worker is a scripted scheduler.
type worker struct {
	schedulerv1.UnimplementedWorkerServer
	script func(stream schedulerv1.Worker_ConnectServer) error
}

func (w *worker) Connect(stream schedulerv1.Worker_ConnectServer) error { return w.script(stream) }

func admit(stream schedulerv1.Worker_ConnectServer, interval time.Duration) error {
	return stream.Send(&schedulerv1.Order{Term: 1, Message: &schedulerv1.Order_Admitted{
		Admitted: &schedulerv1.Admitted{HeartbeatMillis: interval.Milliseconds(), TimeoutMillis: 20_000},
	}})
}

// rig is a node's end with a scripted scheduler, in a bubble.
type rig struct {
	*peer
	node *Scheduler
	stop func()

	mu       sync.Mutex
	received []string // short forms of the messages that the scheduler received
	contact  []bool
	orders   []*schedulerv1.Order
}

func (r *rig) note(m *schedulerv1.WorkerMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case m.GetRegister() != nil:
		r.received = append(r.received, "register "+m.GetRegister().GetNodeName())
	case m.GetHeartbeat() != nil:
		r.received = append(r.received, fmt.Sprintf("heartbeat images=%t", m.GetHeartbeat().GetImagesChanged()))
	case m.GetObservation() != nil:
		r.received = append(r.received, fmt.Sprintf("%s#%d", m.GetObservation().GetUid(), m.GetObservation().GetSequence()))
	}
}

// take returns what the scheduler received since the last call.
func (r *rig) take() []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.received
	r.received = nil
	if got == nil {
		got = []string{}
	}
	return got
}

func (r *rig) want(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, r.take()); diff != "" {
		t.Errorf("the scheduler got (-want +got):\n%s", diff)
	}
}

// listen records all messages until the stream ends.
func (r *rig) listen(stream schedulerv1.Worker_ConnectServer) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		r.note(m)
	}
}

type script func(r *rig, stream schedulerv1.Worker_ConnectServer) error

// newRig starts both ends, and stop ends them. The caller must be in a bubble.
func newRig(t *testing.T, script script) *rig {
	r := &rig{}
	r.peer = &peer{register: func(s *grpc.Server) {
		schedulerv1.RegisterWorkerServer(s, &worker{script: func(stream schedulerv1.Worker_ConnectServer) error { return script(r, stream) }})
	}}
	r.node = &Scheduler{
		Dial:      r.dial,
		Register:  func() *schedulerv1.Register { return &schedulerv1.Register{NodeName: "n1"} },
		Heartbeat: func(whole bool) *schedulerv1.Heartbeat { return &schedulerv1.Heartbeat{ImagesChanged: whole} },
		Orders:    func(o *schedulerv1.Order) { r.mu.Lock(); r.orders = append(r.orders, o); r.mu.Unlock() },
		Contact:   func(c bool) { r.mu.Lock(); r.contact = append(r.contact, c); r.mu.Unlock() },
		Outbox:    NewOutbox(), Logger: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	r.up()
	go func() { done <- r.node.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		r.down()
	}
	return r
}

func withScheduler(t *testing.T, script script, f func(t *testing.T, r *rig)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, script)
		f(t, r)
		r.stop()
	})
}

func admitAndListen(r *rig, stream schedulerv1.Worker_ConnectServer) error {
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	r.note(m)
	if err := admit(stream, 5*time.Second); err != nil {
		return err
	}
	return r.listen(stream)
}

func see(uid string, sequence int64) *schedulerv1.Observation {
	return &schedulerv1.Observation{Uid: uid, Sequence: sequence}
}

func TestRegisterThenHeartbeats(t *testing.T) {
	withScheduler(t, admitAndListen, func(t *testing.T, r *rig) {
		r.want(t, "register n1", "heartbeat images=true")
		time.Sleep(10 * time.Second)
		r.want(t, "heartbeat images=false", "heartbeat images=false")
		if len(r.orders) != 1 || r.orders[0].GetAdmitted() == nil {
			t.Errorf("handed on %v, want the admission", r.orders)
		}
	})
}

func TestNothingIsReportedBeforeAdmission(t *testing.T) {
	var mayAdmit chan struct{} // made in the bubble
	script := func(r *rig, stream schedulerv1.Worker_ConnectServer) error {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		r.note(m)
		go func() { <-mayAdmit; _ = admit(stream, time.Minute) }()
		return r.listen(stream)
	}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mayAdmit = make(chan struct{})
		r := newRig(t, script)
		r.node.Outbox.Put(see("a", 1))
		r.want(t, "register n1")
		close(mayAdmit)
		r.want(t, "heartbeat images=true", "a#1")
		r.stop()
	})
}

func TestUnansweredRegistrationTimesOut(t *testing.T) {
	withScheduler(t, func(r *rig, stream schedulerv1.Worker_ConnectServer) error { return r.listen(stream) }, func(t *testing.T, r *rig) {
		r.want(t, "register n1")
		time.Sleep(admission + time.Second)
		r.want(t, "register n1")
	})
}

// After a reconnect, the node sends everything again, including what the former connection
// acknowledged. It sends nothing twice on one connection.
func TestReconnectSendsEverythingAgain(t *testing.T) {
	withScheduler(t, admitAndListen, func(t *testing.T, r *rig) {
		r.node.Outbox.Put(see("a", 1))
		r.want(t, "register n1", "heartbeat images=true", "a#1")
		if !r.node.Outbox.Ack("a", 1) {
			t.Error("Ack() of the latest = false")
		}
		r.down()
		time.Sleep(3 * time.Minute)
		r.node.Outbox.Put(see("b", 2))
		r.node.Outbox.Put(see("b", 3))
		r.up()
		time.Sleep(maxPause)
		got := r.take()
		seen := map[string]int{}
		for _, g := range got {
			seen[g]++
		}
		if seen["register n1"] != 1 || seen["a#1"] != 1 || seen["b#3"] != 1 || seen["b#2"] != 0 {
			t.Errorf("after the reconnect the scheduler got %v", got)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if diff := cmp.Diff([]bool{true, false, true}, r.contact); diff != "" {
			t.Errorf("contact (-want +got):\n%s", diff)
		}
	})
}

func TestANodeCanRegisterAgain(t *testing.T) {
	withScheduler(t, admitAndListen, func(t *testing.T, r *rig) {
		r.want(t, "register n1", "heartbeat images=true")
		r.node.Reconnect()
		r.node.Reconnect()
		time.Sleep(firstPause)
		r.want(t, "register n1", "heartbeat images=true")
	})
}

// A rejected node retries with growing pauses.
func TestRefusedRegistrationIsRetried(t *testing.T) {
	refuse := func(r *rig, stream schedulerv1.Worker_ConnectServer) error {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		r.note(m)
		return status.Error(codes.PermissionDenied, "the node's certificate is of another node")
	}
	withScheduler(t, refuse, func(t *testing.T, r *rig) {
		time.Sleep(10 * time.Minute)
		if got := len(r.take()); got < 30 || got > 100 {
			t.Errorf("tried %d times in ten minutes, want about one in %s", got, maxPause)
		}
	})
}

func TestObservationsAreSentUntilAcknowledged(t *testing.T) {
	withScheduler(t, admitAndListen, func(t *testing.T, r *rig) {
		r.node.Outbox.Put(see("a", 1))
		r.node.Outbox.Put(see("b", 2))
		r.take()
		r.node.Outbox.Ack("b", 2)
		sent := 0
		for range 20 {
			time.Sleep(5 * time.Second)
			for _, g := range r.take() {
				switch g {
				case "a#1":
					sent++
				case "b#2":
					t.Error("an acknowledged observation was sent again")
				}
			}
		}
		if sent != 3 {
			t.Errorf("sent %d times more in 100 s, want once in %s", sent, resendAfter)
		}
	})
}

// A scheduler that does not read blocks no other part. It then gets only the latest observations.
func TestSlowSchedulerOnlyCoalesces(t *testing.T) {
	var read chan struct{} // made in the bubble
	script := func(r *rig, stream schedulerv1.Worker_ConnectServer) error {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if err := admit(stream, time.Minute); err != nil {
			return err
		}
		<-read
		return r.listen(stream)
	}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		read = make(chan struct{})
		r := newRig(t, script)
		synctest.Wait()
		// More than the transport can buffer, so that Send blocks.
		big := make([]byte, 1<<10)
		for sequence := range int64(2000) {
			r.node.Outbox.Put(&schedulerv1.Observation{Uid: "a", Sequence: sequence, Status: big})
			r.node.Outbox.Put(&schedulerv1.Observation{Uid: fmt.Sprint("i", sequence%10), Sequence: sequence, Status: big})
			if sequence%10 == 0 {
				synctest.Wait()
			}
		}
		close(read)
		got := r.take()
		last := map[string]string{}
		for _, g := range got {
			last[g[:2]] = g
		}
		if len(got) > 1500 || last["a#"] != "a#1999" || last["i3"] != "i3#1993" {
			t.Errorf("%d messages for 4000 changes, the last %v, want them coalesced to the latest", len(got), last)
		}
		r.stop()
	})
}
