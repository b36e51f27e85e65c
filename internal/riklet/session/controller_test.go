package session

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/instance/instancefake"
	"rik.dev/rik/internal/rpc/nodev1"
)

// controller is the other end, over gRPC in memory. It reads all output of a session unless a
// test stops that.
type controller struct {
	nodev1.UnimplementedNodeServer

	t        *testing.T
	host     *instancefake.Host
	driver   instance.Driver
	sessions *Sessions
	conn     *grpc.ClientConn

	mu    sync.Mutex
	users map[int64]*user
}

// user is the user of one session.
type user struct {
	mu     sync.Mutex
	got    map[nodev1.Channel]*bytes.Buffer
	half   bool // the node has sent all output
	end    *nodev1.SessionEnd
	opened bool

	refuse bool          // do not accept the stream
	pause  chan struct{} // not nil: nothing is read until it is closed
	enough int           // not 0: nothing is read after so many bytes
	send   chan *nodev1.SessionInput
	left   chan struct{} // closed when the user leaves
}

// Session implements nodev1.NodeServer.
func (c *controller) Session(stream nodev1.Node_SessionServer) error {
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	start := m.GetStart()
	u := c.user(start.GetSession())
	if start.GetNodeName() != "n1" || string(start.GetSecret()) != "secret" || u.refuse {
		return status.Error(codes.PermissionDenied, "not announced")
	}
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	u.locked(func() { u.opened = true })
	read := make(chan struct{})
	go func() {
		defer close(read)
		u.read(c.t, stream)
	}()
	for {
		select {
		case m := <-u.send:
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-read:
			return nil
		case <-u.left:
			return nil
		}
	}
}

func (u *user) read(t *testing.T, stream nodev1.Node_SessionServer) {
	if u.pause != nil {
		select {
		case <-u.pause:
		case <-stream.Context().Done():
			return
		}
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		u.locked(func() {
			switch {
			case u.end != nil:
				t.Errorf("%v follows the end", m)
			case m.GetEnd() != nil:
				u.end = m.GetEnd()
			case m.GetEndOfOutput():
				u.half = true
			default:
				channel := m.GetOutput().GetChannel()
				if u.got[channel] == nil {
					u.got[channel] = &bytes.Buffer{}
				}
				u.got[channel].Write(m.GetOutput().GetData())
			}
		})
		if m.GetEnd() != nil {
			return
		}
		if u.enough != 0 && u.bytes() > u.enough {
			<-stream.Context().Done()
			return
		}
	}
}

// bytes returns how much the user has received.
func (u *user) bytes() (n int) {
	u.locked(func() {
		for _, b := range u.got {
			n += b.Len()
		}
	})
	return n
}

func (u *user) locked(f func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f()
}

// user returns the user of a session. It creates the user on the first call.
func (c *controller) user(id int64) *user {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[id] == nil {
		c.users[id] = &user{got: map[nodev1.Channel]*bytes.Buffer{}, send: make(chan *nodev1.SessionInput, 1<<12), left: make(chan struct{})}
	}
	return c.users[id]
}

func (c *controller) text(id int64, channel nodev1.Channel) (text string) {
	synctest.Wait()
	u := c.user(id)
	u.locked(func() {
		if b := u.got[channel]; b != nil {
			text = b.String()
		}
	})
	return text
}

func (c *controller) out(id int64) string { return c.text(id, nodev1.Channel_CHANNEL_STDOUT) }

func (c *controller) ended(id int64) (end *nodev1.SessionEnd) {
	synctest.Wait()
	u := c.user(id)
	u.locked(func() { end = u.end })
	return end
}

func (c *controller) send(id int64, messages ...*nodev1.SessionInput) {
	for _, m := range messages {
		c.user(id).send <- m
	}
}

// leave ends a session as the controller does when its user is gone.
func (c *controller) leave(id int64) {
	close(c.user(id).left)
	c.sessions.End(&nodev1.CloseSession{Session: id})
}

func (c *controller) open(id int64, announced *nodev1.OpenSession) {
	announced.Session, announced.Secret = id, []byte("secret")
	if announced.GetUid() == "" {
		announced.Uid = "a"
	}
	c.sessions.Open(announced)
}

func (c *controller) exec(id int64, stdin bool, command ...string) {
	c.open(id, &nodev1.OpenSession{Kind: &nodev1.OpenSession_Exec{Exec: &nodev1.ExecSession{Command: command, Stdin: stdin}}})
}

func (c *controller) log(id int64, log *nodev1.LogSession) {
	c.open(id, &nodev1.OpenSession{Kind: &nodev1.OpenSession_Log{Log: log}})
}

// with runs f in a bubble with one running instance "a" of containers c1 and c2.
func with(t *testing.T, cfg instancefake.Config, f func(t *testing.T, c *controller)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host := instancefake.NewHost()
		driver := host.Driver(cfg)
		if err := driver.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- driver.Run(ctx) }()
		in := instance.Instance{UID: "a"}
		in.Template.Containers = []rikv1alpha1.Container{{Name: "c1"}, {Name: "c2"}}
		if err := driver.Ensure(in); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c, stop := serving(t, driver)
		c.host = host
		f(t, c)
		stop()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

// serving connects sessions of instance "a" with a controller.
func serving(t *testing.T, driver instance.Driver) (c *controller, stop func()) {
	t.Helper()
	c = &controller{t: t, driver: driver, users: map[int64]*user{}}
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.StaticStreamWindowSize(nodev1.Window), grpc.StaticConnWindowSize(nodev1.ConnectionWindow))
	nodev1.RegisterNodeServer(server, c)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///memory", append(nodev1.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	c.conn = conn
	c.sessions = New(t.Context(), Config{
		Node: "n1", Resolve: func(uid string) (instance.Driver, string, bool) { return driver, "c1", uid == "a" },
		Images: echoing{}, Client: nodev1.NewNodeClient(conn), Logger: slog.New(slog.DiscardHandler),
	})
	return c, func() {
		c.sessions.Close()
		_ = conn.Close()
		server.Stop()
		<-served
	}
}
