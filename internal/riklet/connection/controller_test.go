package connection

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"rik.dev/rik/internal/riklet/objects"
	"rik.dev/rik/internal/rpc/nodev1"
)

// nodeServer is a scripted controller. It records the requests and answers every request for a
// Secret.
type nodeServer struct {
	nodev1.UnimplementedNodeServer

	mu     sync.Mutex
	asked  []string
	got    []*nodev1.StreamData
	stream nodev1.Node_ConnectServer
}

func (n *nodeServer) Connect(stream nodev1.Node_ConnectServer) error {
	n.mu.Lock()
	n.stream = stream
	n.mu.Unlock()
	if err := stream.Send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Hello{Hello: &nodev1.ControllerHello{Version: "v1"}}}); err != nil {
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
	case m.GetData() != nil:
		n.got = append(n.got, m.GetData())
	}
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

// echoSessions returns every piece of data.
type echoSessions struct {
	send   func(*nodev1.StreamData) error
	opened []int64
	closed bool
}

func (e *echoSessions) Open(o *nodev1.OpenStream) { e.opened = append(e.opened, o.GetStream()) }
func (e *echoSessions) Data(d *nodev1.StreamData) { _ = e.send(d) }
func (e *echoSessions) Close()                    { e.closed = true }

func withController(t *testing.T, f func(t *testing.T, p *peer, server *nodeServer, store *objects.Store, made *[]*echoSessions)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &nodeServer{}
		p := &peer{register: func(s *grpc.Server) { nodev1.RegisterNodeServer(s, server) }}
		store, err := objects.New(objects.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		made := []*echoSessions{}
		c := &Controller{
			Dial: p.dial, Hello: &nodev1.NodeHello{NodeName: "n1"}, Objects: store, Logger: slog.New(slog.DiscardHandler),
			Sessions: func(_ context.Context, send func(*nodev1.StreamData) error) Sessions {
				made = append(made, &echoSessions{send: send})
				return made[len(made)-1]
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		p.up()
		go func() { done <- c.Run(ctx) }()
		f(t, p, server, store, &made)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		p.down()
	})
}

func TestObjectsAreAskedForAndAskedAgain(t *testing.T) {
	withController(t, func(t *testing.T, p *peer, server *nodeServer, store *objects.Store, _ *[]*echoSessions) {
		if e, err := store.Secret(t.Context(), "shop", "password"); err != nil || string(e.Data["k"]) != "v" {
			t.Fatalf("Secret() = %+v, %v", e, err)
		}
		if diff := cmp.Diff([]string{"hello n1", "KIND_SECRET shop/password"}, server.take()); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		p.down()
		if _, err := store.Revision("shop", "web-1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		p.up()
		time.Sleep(pauseMost)
		if diff := cmp.Diff([]string{"KIND_REVISION shop/web-1", "KIND_SECRET shop/password", "hello n1"}, sorted(server.take())); diff != "" {
			t.Errorf("asked after the reconnect (-want +got):\n%s", diff)
		}
	})
}

func TestSessionsBelongToTheirConnection(t *testing.T) {
	withController(t, func(t *testing.T, p *peer, server *nodeServer, _ *objects.Store, made *[]*echoSessions) {
		synctest.Wait()
		server.send(t, &nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Open{Open: &nodev1.OpenStream{Stream: 7}}})
		server.send(t, &nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Data{Data: &nodev1.StreamData{Stream: 7, Data: []byte("x")}}})
		server.mu.Lock()
		if len(server.got) != 1 || string(server.got[0].GetData()) != "x" {
			t.Errorf("the controller got %v back, want the piece", server.got)
		}
		server.mu.Unlock()
		p.down()
		synctest.Wait()
		if first := (*made)[0]; !first.closed || !cmp.Equal(first.opened, []int64{7}) {
			t.Errorf("opened %v, closed %t, want one session that ended with its connection", first.opened, first.closed)
		}
		p.up()
		time.Sleep(pauseMost)
		synctest.Wait()
		if len(*made) != 2 || (*made)[1].closed {
			t.Errorf("%d connections had sessions, want a second that is open", len(*made))
		}
	})
}

func TestNewsOfTheNetworkAreHandedOn(t *testing.T) {
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
			Dial: p.dial, Hello: &nodev1.NodeHello{NodeName: "n1"}, Objects: store, Logger: slog.New(slog.DiscardHandler),
			Sessions: func(context.Context, func(*nodev1.StreamData) error) Sessions { return &echoSessions{} },
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
			t.Errorf("told %v, want both in their order", reported)
		}
	})
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}
