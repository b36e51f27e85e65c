package nodeapi

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
)

// announcement receives the announcement of a session on the node's side.
func (l *link) announcement(t *testing.T) *nodev1.OpenSession {
	t.Helper()
	m, err := l.Recv()
	if err != nil || m.GetOpen() == nil {
		t.Fatalf("the node got %v, %v, want a session", m, err)
	}
	return m.GetOpen()
}

// start opens the stream of a session as a riklet does.
func (l *link) start(t *testing.T, announced *nodev1.OpenSession) nodev1.Node_SessionClient {
	t.Helper()
	stream, err := l.client.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&nodev1.SessionOutput{Message: &nodev1.SessionOutput_Start{Start: &nodev1.SessionStart{
		NodeName: l.node, Session: announced.GetSession(), Secret: announced.GetSecret(),
	}}})
	return stream
}

// opening is a call of Open.
type opening struct {
	session *Session
	err     error
}

func (w *fixture) open(ctx context.Context, node string) <-chan opening {
	result := make(chan opening, 1)
	go func() {
		s, err := w.server.Open(ctx, node, &nodev1.OpenSession{Uid: "u"})
		result <- opening{s, err}
	}()
	return result
}

// opened opens a session from both sides.
func (w *fixture) opened(t *testing.T, l *link) (*Session, nodev1.Node_SessionClient) {
	t.Helper()
	result := w.open(t.Context(), l.node)
	stream := l.start(t, l.announcement(t))
	r := <-result
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.session, stream
}

func (w *fixture) joined(t *testing.T, node string) *link {
	t.Helper()
	pair, err := w.join(t, node, "machine of "+node)
	if err != nil {
		t.Fatal(err)
	}
	return w.connect(t, pair, node)
}

func output(size int) *nodev1.SessionOutput {
	return nodev1.NewOutput(nodev1.Channel_CHANNEL_STDOUT, make([]byte, size))
}

// TestASlowReaderHoldsUpNoOtherSession: a session that is not read stops its node. Other sessions
// and the objects of the node go on.
func TestASlowReaderHoldsUpNoOtherSession(t *testing.T) {
	t.Parallel()
	w := newFixture(t, revisionWithSecret("web-1", "mine"))
	w.instances.Observe(bound("1", "node-1", "web-1"))
	l := w.joined(t, "node-1")
	slow, slowNode := w.opened(t, l)
	quick, quickNode := w.opened(t, l)

	const pieces = 8 * nodev1.Window / nodev1.Piece
	sent := make(chan error, 1)
	go func() {
		for range pieces {
			if err := slowNode.Send(output(nodev1.Piece)); err != nil {
				sent <- err
				return
			}
		}
		sent <- slowNode.Send(nodev1.NewEnd(&nodev1.SessionEnd{}))
	}()
	for _, m := range []*nodev1.SessionOutput{nodev1.NewOutput(nodev1.Channel_CHANNEL_STDOUT, []byte("hello")), nodev1.NewEnd(&nodev1.SessionEnd{ExitCode: 7})} {
		if err := quickNode.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := quick.Recv(); err != nil || string(m.GetOutput().GetData()) != "hello" {
		t.Fatalf("the quick session got %v, %v", m, err)
	}
	if m, err := quick.Recv(); err != nil || m.GetEnd().GetExitCode() != 7 {
		t.Fatalf("the quick session ended with %v, %v, want exit code 7", m, err)
	}
	if _, err := quick.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("after its end: %v, want EOF", err)
	}
	if got := ask(t, l, nodev1.Kind_KIND_REVISION, "web-1"); !got.GetFound() {
		t.Errorf("during a slow session the node was given %v, want its revision", got)
	}

	// A user who reads again gets everything.
	for i := range pieces {
		if m, err := slow.Recv(); err != nil || len(m.GetOutput().GetData()) != nodev1.Piece {
			t.Fatalf("piece %d: %v, %v", i, m, err)
		}
	}
	if m, err := slow.Recv(); err != nil || m.GetEnd() == nil {
		t.Errorf("the slow session ended with %v, %v", m, err)
	}
	if err := <-sent; err != nil {
		t.Errorf("the node of the slow session: %v", err)
	}
}

func TestMessagesReachTheNodeAsTheyAre(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := w.joined(t, "node-1")
	s, node := w.opened(t, l)
	for _, m := range []*nodev1.SessionInput{nodev1.NewInput([]byte("ls\n")), nodev1.NewSize(80, 25), nodev1.NewEndOfInput()} {
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
		if got, err := node.Recv(); err != nil || !proto.Equal(got, m) {
			t.Errorf("the node got %v, %v, want %v", got, err, m)
		}
	}
	s.Close()
	if m, err := l.Recv(); err != nil || m.GetClose().GetSession() != s.id {
		t.Errorf("after Close the node got %v, %v", m, err)
	}
	if m, err := node.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after Close the session's stream got %v, %v, want its end", m, err)
	}
	if err := s.Send(nodev1.NewInput([]byte("x"))); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Send after Close = %v, want ErrClosedPipe", err)
	}
}

// TestOnlyTheAnnouncedNodeOpensASession: a session's stream is accepted once, from the node that
// the session was announced to.
func TestOnlyTheAnnouncedNodeOpensASession(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := w.joined(t, "node-1")
	other := w.joined(t, "node-2")
	result := w.open(t.Context(), "node-1")
	announced := l.announcement(t)
	guess := proto.CloneOf(announced)
	guess.Secret = []byte(strings.Repeat("A", len(guess.GetSecret())))
	next := proto.CloneOf(announced)
	next.Session++
	refused := func(what string, l *link, announced *nodev1.OpenSession, want codes.Code) {
		t.Helper()
		if _, err := l.start(t, announced).Recv(); status.Code(err) != want {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	lies := &link{client: other.client, node: "node-1"}
	admin := &link{client: nodev1.NewNodeClient(w.dial(t, issue(t, w.authority, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}))), node: "node-1"}
	refused("another node", other, announced, codes.PermissionDenied)
	refused("another node that says it is this one", lies, announced, codes.PermissionDenied)
	refused("no certificate", &link{client: nodev1.NewNodeClient(w.dial(t, nil)), node: "node-1"}, announced, codes.Unauthenticated)
	refused("not a node", admin, announced, codes.PermissionDenied)
	refused("no secret", l, &nodev1.OpenSession{Session: announced.GetSession()}, codes.PermissionDenied)
	refused("a wrong secret", l, guess, codes.PermissionDenied)
	refused("another number", l, next, codes.PermissionDenied)
	copied := issue(t, w.authority, pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + "node-1", Organization: []string{rikv1alpha1.GroupNodes}, SerialNumber: "of a Node before"})
	refused("an older certificate of the name", &link{client: nodev1.NewNodeClient(w.dial(t, copied)), node: "node-1"}, announced, codes.PermissionDenied)

	node := l.start(t, announced)
	r := <-result
	if r.err != nil {
		t.Fatal(r.err)
	}
	refused("a second stream", l, announced, codes.PermissionDenied)
	if err := r.session.Send(nodev1.NewInput([]byte("x"))); err != nil {
		t.Fatal(err)
	}
	if m, err := node.Recv(); err != nil || string(m.GetData()) != "x" {
		t.Errorf("the node's own stream got %v, %v", m, err)
	}
	r.session.Close()
	refused("after the end", l, announced, codes.PermissionDenied)
}

func TestANodeThatSendsTooMuchLosesTheSession(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	l := w.joined(t, "node-1")
	for name, m := range map[string]*nodev1.SessionOutput{
		"a large piece":      output(nodev1.MaxPiece + 1),
		"a very large piece": output(maxFromNode),
		"a second start":     {Message: &nodev1.SessionOutput_Start{Start: &nodev1.SessionStart{}}},
		"an empty message":   {},
	} {
		s, node := w.opened(t, l)
		if err := node.Send(m); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); !errors.Is(err, errMisused) {
			t.Errorf("%s: Recv() = %v, want errMisused", name, err)
		}
		// gRPC ends a stream with a very large message by itself.
		if _, err := node.Recv(); status.Code(err) != codes.Aborted && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: the node's stream ended with %v, want Aborted or ResourceExhausted", name, err)
		}
	}
	s, node := w.opened(t, l)
	if err := node.Send(nodev1.NewEnd(&nodev1.SessionEnd{Error: strings.Repeat("é", maxReason)})); err != nil {
		t.Fatal(err)
	}
	if m, err := s.Recv(); err != nil || len(m.GetEnd().GetError()) > maxReason+len("...") {
		t.Errorf("an endless reason arrived with %d bytes, %v", len(m.GetEnd().GetError()), err)
	}
}

// inMemory is a fixture in a synctest bubble, without TLS.
func inMemory(t *testing.T, f func(t *testing.T, w *fixture, l *link)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := unserved(t, nil)
		listener, g := bufconn.Listen(1<<16), grpc.NewServer(ServerOptions()...)
		w.server.Register(g, true)
		done := make(chan error, 1)
		go func() { done <- g.Serve(listener) }()
		conn, err := grpc.NewClient("passthrough:///memory", append(nodev1.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
		if err != nil {
			t.Fatal(err)
		}
		client := nodev1.NewNodeClient(conn)
		stream, err := client.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(helloOf("node-1", "")); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f(t, w, &link{stream, client, "node-1"})
		_ = conn.Close()
		g.Stop()
		<-done
	})
}

// TestANodeIsStoppedUntilItIsRead: HTTP/2 stops the node of a session that is not read, so that
// the controller holds no more than the window. That is so for messages without data, too.
func TestANodeIsStoppedUntilItIsRead(t *testing.T) {
	for name, size := range map[string]int{"pieces": nodev1.Piece, "empty messages": 0} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, w *fixture, l *link) {
				s, node := w.opened(t, l)
				m := output(size)
				var sent atomic.Int64
				var ended atomic.Bool
				go func() {
					for node.Send(m) == nil {
						sent.Add(int64(5 + proto.Size(m))) // gRPC puts five bytes before a message
					}
					ended.Store(true)
				}()
				synctest.Wait()
				// gRPC holds 64 KiB on the sender's side.
				first := sent.Load()
				if limit := int64(nodev1.Window + 64<<10 + 2*nodev1.Piece); first > limit || ended.Load() {
					t.Errorf("a node that is not read sent %d bytes, want at most %d and a session that goes on", first, limit)
				}
				for got := 0; got <= nodev1.Window; got += 5 + proto.Size(m) {
					if _, err := s.Recv(); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				if sent.Load() <= first {
					t.Error("a node that was read sends no more")
				}
				s.Close()
				synctest.Wait()
				if !ended.Load() {
					t.Error("the node sends after the end of the session")
				}
			})
		})
	}
}

// TestASessionThatTheNodeDoesNotOpen: a user waits openTimeout and gets a reason. The node is
// informed, and may not open the session later.
func TestASessionThatTheNodeDoesNotOpen(t *testing.T) {
	inMemory(t, func(t *testing.T, w *fixture, l *link) {
		began := time.Now()
		result := w.open(t.Context(), "node-1")
		announced := l.announcement(t)
		r := <-result
		if !errors.Is(r.err, ErrNotOpened) || !strings.Contains(r.err.Error(), "within 10s") || time.Since(began) != openTimeout {
			t.Errorf("Open() = %v after %v, want ErrNotOpened with the time after %v", r.err, time.Since(began), openTimeout)
		}
		if m, err := l.Recv(); err != nil || m.GetClose().GetSession() != announced.GetSession() {
			t.Errorf("the node got %v, %v, want the end of the session", m, err)
		}
		if _, err := l.start(t, announced).Recv(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("a node that opens too late: %v, want PermissionDenied", err)
		}
		c := w.server.connection("node-1")
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.sessions) != 0 {
			t.Errorf("%d sessions are left", len(c.sessions))
		}
	})
}

// TestANodeThatDoesNotReadDelaysNoUser: announcements to a node that does not read wait in a
// bounded queue. When it is full, the connection ends.
func TestANodeThatDoesNotReadDelaysNoUser(t *testing.T) {
	t.Parallel()
	var why error
	c := newConnection(t.Context(), func(err error) { why = err }, "node-1", nil)
	for range maxOrders {
		c.order(&nodev1.ControllerMessage{})
	}
	if why != nil {
		t.Fatalf("the connection ended early: %v", why)
	}
	c.order(&nodev1.ControllerMessage{})
	if !errors.Is(why, errNotReading) || len(c.takeOrders()) != maxOrders {
		t.Errorf("the connection ended with %v, want errNotReading", why)
	}
}

// TestSessionsAreSharedAmongNamespaces: a namespace with many sessions leaves some to others.
func TestSessionsAreSharedAmongNamespaces(t *testing.T) {
	t.Parallel()
	c := newConnection(t.Context(), func(error) {}, "node-1", nil)
	fill := func(namespace string) (n int, err error) {
		for n = 0; ; n++ {
			if _, err = c.register(namespace); err != nil {
				return n, err
			}
		}
	}
	for _, want := range []struct {
		namespace string
		n         int
	}{{"greedy", 128}, {"also", 64}, {"third", 32}, {"greedy", 0}} {
		n, err := fill(want.namespace)
		if n != want.n || !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), want.namespace) {
			t.Errorf("namespace %s got %d sessions and then %v, want %d and ErrBusy", want.namespace, n, err, want.n)
		}
	}
	s, err := c.register("modest")
	if err != nil {
		t.Fatalf("a namespace without a session gets none: %v", err)
	}
	s.Close()
	if _, err := c.register("modest"); err != nil {
		t.Errorf("the remaining session is not free again: %v", err)
	}
}

func TestSessionsEndWithTheStreamAndTheContext(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	if _, err := w.server.Open(t.Context(), "node-1", &nodev1.OpenSession{}); !errors.Is(err, ErrNodeNotConnected) {
		t.Errorf("Open without a stream = %v, want ErrNodeNotConnected", err)
	}
	l := w.joined(t, "node-1")

	ctx, cancel := context.WithCancel(t.Context())
	result := w.open(ctx, "node-1")
	node := l.start(t, l.announcement(t))
	s := (<-result).session
	cancel()
	if m, err := l.Recv(); err != nil || m.GetClose() == nil {
		t.Errorf("after the user went the node got %v, %v, want the end of the session", m, err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("Recv after the context ended = %v, want EOF", err)
	}
	if _, err := node.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the session's stream ended with %v, want EOF", err)
	}

	ctx, cancel = context.WithCancel(t.Context())
	result = w.open(ctx, "node-1")
	l.announcement(t)
	cancel()
	if r := <-result; !errors.Is(r.err, context.Canceled) {
		t.Errorf("Open of a user who went = %v, want Canceled", r.err)
	}
	if m, err := l.Recv(); err != nil || m.GetClose() == nil {
		t.Errorf("the node got %v, %v, want the end of the session", m, err)
	}

	other, _ := w.opened(t, l)
	waiting := w.open(t.Context(), "node-1")
	l.announcement(t)
	if err := l.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Recv(); !errors.Is(err, ErrNodeLost) || err.Error() != ErrNodeLost.Error() {
		t.Errorf("Recv after the node went = %v, want ErrNodeLost and nothing of how a stream ends", err)
	}
	if r := <-waiting; !errors.Is(r.err, ErrNodeLost) {
		t.Errorf("Open while the node went = %v, want ErrNodeLost", r.err)
	}
}

// TestAnotherVersionIsRefused: a riklet and a controller that use different versions of the
// protocol do not work together. The message names both programs and the next step.
func TestAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	pair, err := w.join(t, "node-1", "machine-1")
	if err != nil {
		t.Fatal(err)
	}
	for version, protocol := range map[string]uint32{"v8": 0, "v10": nodev1.Protocol + 1} {
		stream, err := nodev1.NewNodeClient(w.dial(t, pair)).Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&nodev1.NodeMessage{Message: &nodev1.NodeMessage_Hello{Hello: &nodev1.NodeHello{NodeName: "node-1", Version: version, Protocol: protocol}}})
		_, err = stream.Recv()
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a riklet of version %s: %v, want FailedPrecondition", version, err)
		}
		for _, want := range []string{version, "v9", fmt.Sprintf("version %d", protocol), "install rik"} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("a riklet of version %s: %v, want it to say %q", version, err, want)
			}
		}
	}
	if got := w.server.Connected(); len(got) != 0 {
		t.Errorf("connected are %v", got)
	}
}
