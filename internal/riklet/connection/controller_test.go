package connection

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rik.dev/rik/internal/riklet/objects"
	"rik.dev/rik/internal/rpc/nodev1"
)

// nodeServer is a scripted controller. It records the requests and answers every request for a
// Secret.
type nodeServer struct {
	nodev1.UnimplementedNodeServer

	mu       sync.Mutex
	asked    []string
	started  []int64 // sessions whose streams were opened
	protocol uint32  // 0: the riklet's own
	refuses  error   // the answer to each connection
	stream   nodev1.Node_ConnectServer
}

func (n *nodeServer) Connect(stream nodev1.Node_ConnectServer) error {
	n.mu.Lock()
	n.stream = stream
	protocol, refuses := cmp.Or(n.protocol, nodev1.Protocol), n.refuses
	n.mu.Unlock()
	if refuses != nil {
		return refuses
	}
	if err := stream.Send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Hello{Hello: &nodev1.ControllerHello{Version: "v1", Protocol: protocol}}}); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		n.note(m)
		if get := m.GetGet(); get.GetKind() == nodev1.Kind_KIND_SECRET {
			object := &nodev1.Object{Kind: get.GetKind(), Namespace: get.GetNamespace(), Name: get.GetName(), Found: true, Entries: map[string][]byte{"k": []byte("v")}}
			if err := stream.Send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Object{Object: object}}); err != nil {
				return err
			}
		}
	}
}

func (n *nodeServer) note(m *nodev1.NodeMessage) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case m.GetHello() != nil:
		n.asked = append(n.asked, "hello "+m.GetHello().GetNodeName())
	case m.GetGet() != nil:
		n.asked = append(n.asked, fmt.Sprintf("%s %s/%s", m.GetGet().GetKind(), m.GetGet().GetNamespace(), m.GetGet().GetName()))
	case m.GetMeasurements() != nil:
		usages := m.GetMeasurements().GetUsages()
		n.asked = append(n.asked, fmt.Sprintf("%d usages from %q", len(usages), usages[0].GetUid()))
	}
}

// Session implements nodev1.NodeServer.
func (n *nodeServer) Session(stream nodev1.Node_SessionServer) error {
	m, err := stream.Recv()
	if err == nil {
		n.mu.Lock()
		n.started = append(n.started, m.GetStart().GetSession())
		n.mu.Unlock()
	}
	return err
}

// set changes how the server answers the next connections.
func (n *nodeServer) set(refuses error, protocol uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuses, n.protocol = refuses, protocol
}

func (n *nodeServer) take() []string {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	asked := n.asked
	n.asked = nil
	return asked
}

// send sends a controller's message on the current stream.
func (n *nodeServer) send(t *testing.T, m *nodev1.ControllerMessage) {
	t.Helper()
	n.mu.Lock()
	stream := n.stream
	n.mu.Unlock()
	if err := stream.Send(m); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// notedSessions open a stream for every announcement.
type notedSessions struct {
	ctx           context.Context
	client        nodev1.NodeClient
	opened, ended []int64
	closed        bool
}

func (e *notedSessions) Open(o *nodev1.OpenSession) {
	e.opened = append(e.opened, o.GetSession())
	stream, err := e.client.Session(e.ctx)
	if err != nil {
		return
	}
	start := &nodev1.SessionStart{Session: o.GetSession()}
	_ = stream.Send(&nodev1.SessionOutput{Message: &nodev1.SessionOutput_Start{Start: start}})
}

func (e *notedSessions) End(o *nodev1.CloseSession) { e.ended = append(e.ended, o.GetSession()) }
func (e *notedSessions) Close()                     { e.closed = true }

// controllerBench is a connection and a scripted controller.
type controllerBench struct {
	*Controller
	p      *peer
	server *nodeServer
	store  *objects.Store
	made   []*notedSessions // one for each connection
}

func withController(t *testing.T, f func(t *testing.T, b *controllerBench)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &nodeServer{}
		p := &peer{register: func(s *grpc.Server) { nodev1.RegisterNodeServer(s, server) }}
		store, err := objects.New(objects.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		b := &controllerBench{p: p, server: server, store: store}
		b.Controller = &Controller{
			Dial: p.dial, Hello: &nodev1.NodeHello{NodeName: "n1", Version: "v2", Protocol: nodev1.Protocol}, Objects: store, Logger: slog.New(slog.DiscardHandler),
			Sessions: func(ctx context.Context, client nodev1.NodeClient) Sessions {
				b.made = append(b.made, &notedSessions{ctx: ctx, client: client})
				return b.made[len(b.made)-1]
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		p.up()
		go func() { done <- b.Run(ctx) }()
		f(t, b)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		p.down()
	})
}

func TestObjectsAreRequestedAndRequestedAgain(t *testing.T) {
	withController(t, func(t *testing.T, b *controllerBench) {
		p, server, store := b.p, b.server, b.store
		if e, err := store.Secret(t.Context(), "shop", "password"); err != nil || string(e.Data["k"]) != "v" {
			t.Fatalf("Secret() = %+v, %v", e, err)
		}
		if diff := gocmp.Diff([]string{"hello n1", "KIND_SECRET shop/password"}, server.take()); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		p.down()
		if _, err := store.Revision("shop", "web-1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		p.up()
		time.Sleep(maxPause)
		if diff := gocmp.Diff([]string{"KIND_REVISION shop/web-1", "KIND_SECRET shop/password", "hello n1"}, sorted(server.take())); diff != "" {
			t.Errorf("asked after the reconnect (-want +got):\n%s", diff)
		}
	})
}

// TestRefusal checks that a decision of the controller about the node counts, and a controller that is
// not reached does not. The first refusals do not count either.
func TestRefusal(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		refuses  error
		protocol uint32
		want     string
	}{
		"removed":       {status.Error(codes.PermissionDenied, "the node was deleted"), 0, "the node was deleted"},
		"twice":         {status.Error(codes.AlreadyExists, "another machine has the name"), 0, "another machine has the name"},
		"wrong version": {nil, nodev1.Protocol + 1, "and its controller runs rik v1 with version"},
		"busy":          {status.Error(codes.Unavailable, "later"), 0, ""},
		"fine":          {nil, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			withController(t, func(t *testing.T, b *controllerBench) {
				b.server.set(tc.refuses, tc.protocol)
				b.p.down()
				b.p.up()
				time.Sleep(firstPause / 2)
				synctest.Wait()
				if got := b.Refusal(); got != "" {
					t.Errorf("after the first connection Refusal() = %q", got)
				}
				time.Sleep(time.Minute)
				if got := b.Refusal(); (got != "") != (tc.want != "") || !strings.Contains(got, tc.want) {
					t.Errorf("Refusal() = %q, want %q", got, tc.want)
				}
				b.p.down()
				time.Sleep(time.Minute)
				if got := b.Refusal(); !strings.Contains(got, tc.want) {
					t.Errorf("without a controller Refusal() = %q, want %q as before", got, tc.want)
				}
				b.server.set(nil, 0)
				b.p.up()
				time.Sleep(2 * maxPause)
				synctest.Wait()
				if got := b.Refusal(); got != "" {
					t.Errorf("after a connection that was accepted Refusal() = %q", got)
				}
			})
		})
	}
}

// TestMeasurementsAreSentToEachController checks that a controller gets the latest measurements
// when it connects, in parts that it accepts. It then gets each newer one once. Older ones are not
// sent.
func TestMeasurementsAreSentToEachController(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &nodeServer{}
		p := &peer{register: func(s *grpc.Server) { nodev1.RegisterNodeServer(s, server) }}
		store, err := objects.New(objects.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		c := &Controller{
			Dial: p.dial, Hello: &nodev1.NodeHello{NodeName: "n1", Protocol: nodev1.Protocol}, Objects: store, Logger: slog.New(slog.DiscardHandler),
			Sessions: func(context.Context, nodev1.NodeClient) Sessions { return &notedSessions{} },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		p.up()
		go func() { done <- c.Run(ctx) }()
		want := func(want ...string) {
			t.Helper()
			if diff := gocmp.Diff(want, server.take()); diff != "" {
				t.Errorf("received (-want +got):\n%s", diff)
			}
		}
		want("hello n1")
		c.SetUsages([]*nodev1.Usage{{Uid: "old"}})
		want(`1 usages from "old"`)
		p.down()
		var many []*nodev1.Usage
		for i := range nodev1.MaxUsages + 1 {
			many = append(many, &nodev1.Usage{Uid: fmt.Sprint(i)})
		}
		c.SetUsages([]*nodev1.Usage{{Uid: "never seen"}})
		c.SetUsages(many)
		time.Sleep(time.Minute)
		server.take()
		p.up()
		time.Sleep(maxPause)
		got := slices.Compact(server.take()[1:])
		if diff := gocmp.Diff([]string{`1000 usages from "0"`, `1 usages from "1000"`}, got[:2]); diff != "" {
			t.Errorf("received after the reconnect (-want +got):\n%s", diff)
		}
		c.SetUsages([]*nodev1.Usage{{Uid: "new"}})
		want(`1 usages from "new"`)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		p.down()
	})
}

func TestSessionsBelongToTheirConnection(t *testing.T) {
	withController(t, func(t *testing.T, b *controllerBench) {
		p, server := b.p, b.server
		synctest.Wait()
		server.send(t, &nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Open{Open: &nodev1.OpenSession{Session: 7}}})
		server.send(t, &nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Close{Close: &nodev1.CloseSession{Session: 7}}})
		server.mu.Lock()
		if !slices.Equal(server.started, []int64{7}) || !slices.Equal(b.made[0].ended, []int64{7}) {
			t.Errorf("the streams of sessions %v were opened and %v ended, want 7", server.started, b.made[0].ended)
		}
		server.mu.Unlock()
		p.down()
		synctest.Wait()
		if first := b.made[0]; !first.closed || !slices.Equal(first.opened, []int64{7}) {
			t.Errorf("opened %v, closed %t, want one session that ended with its connection", first.opened, first.closed)
		}
		p.up()
		time.Sleep(maxPause)
		synctest.Wait()
		if len(b.made) != 2 || b.made[1].closed {
			t.Errorf("%d connections had sessions, want a second that is open", len(b.made))
		}
	})
}

// TestAControllerOfAnotherVersionIsRefused checks that the riklet refuses an older controller,
// which does not know that it must refuse this riklet. The message contains both versions and the
// next step.
func TestAControllerOfAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &nodeServer{protocol: nodev1.Protocol + 1}
		p := &peer{register: func(s *grpc.Server) { nodev1.RegisterNodeServer(s, server) }}
		store, err := objects.New(objects.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		p.up()
		c := &Controller{
			Dial: p.dial, Hello: &nodev1.NodeHello{NodeName: "n1", Version: "v2", Protocol: nodev1.Protocol},
			Objects: store, Logger: slog.New(slog.DiscardHandler),
			Sessions: func(context.Context, nodev1.NodeClient) Sessions { return &notedSessions{} },
		}
		taken, err := c.session(t.Context())
		p.down()
		if taken {
			t.Error("the connection counts as accepted, so the next attempt comes soon")
		}
		for _, want := range []string{`node "n1"`, "v1", "v2", "install rik v1 on the node"} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("session() = %v, want the text %q in it", err, want)
			}
		}
	})
}

func TestNetworkChangesAreForwarded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &nodeServer{}
		p := &peer{register: func(s *grpc.Server) { nodev1.RegisterNodeServer(s, server) }}
		store, err := objects.New(objects.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		var reported []*nodev1.NetworkChanges
		c := &Controller{
			Dial: p.dial, Hello: &nodev1.NodeHello{NodeName: "n1", Version: "v2", Protocol: nodev1.Protocol}, Objects: store, Logger: slog.New(slog.DiscardHandler),
			Sessions: func(context.Context, nodev1.NodeClient) Sessions { return &notedSessions{} },
			Network:  func(c *nodev1.NetworkChanges) { reported = append(reported, c) },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		p.up()
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		for _, name := range []string{"n1", "n2"} {
			changes := &nodev1.NetworkChanges{Peers: []*nodev1.Peer{{Name: name}}}
			server.send(t, &nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Network{Network: changes}})
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		p.down()
		if len(reported) != 2 || reported[0].GetPeers()[0].GetName() != "n1" || reported[1].GetPeers()[0].GetName() != "n2" {
			t.Errorf("reported %v, want both in their order", reported)
		}
	})
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}
