package connection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/wakeup"
)

// Objects requests objects from the controller and stores them. *objects.Store implements it.
type Objects interface {
	HasRequests() <-chan struct{}
	PendingRequests() []*nodev1.Get
	Reconnected()
	Deliver(*nodev1.Object)
}

// Sessions are the logs, commands and ports that the controller announces. *session.Sessions
// implements it.
type Sessions interface {
	// Open opens the stream of a session and returns at once.
	Open(*nodev1.OpenSession)
	// End ends a session and returns at once.
	End(*nodev1.CloseSession)
	// Close ends all sessions and returns when they have ended.
	Close()
}

// Controller is the node's end of the controller's Node service.
type Controller struct {
	// Dial connects to the controller. Required.
	Dial DialFunc
	// Hello is the node's first message. Required.
	Hello *nodev1.NodeHello
	// Objects are requested and delivered over the stream. Required.
	Objects Objects
	// Sessions creates the sessions of one connection. They open their streams with the client.
	// Required.
	Sessions func(ctx context.Context, client nodev1.NodeClient) Sessions
	// Network handles changes of the cluster's network. It must not block. nil ignores them.
	Network func(*nodev1.NetworkChanges)
	// Servers handles the list of servers. It must not block. nil ignores it.
	Servers func(*nodev1.Servers)
	// Move is readable when the connection should end, because Dial leads to another server now. It
	// may be nil.
	Move <-chan struct{}
	// Ended is called at the end of each connection. taken means that the server had accepted it. It
	// may be nil.
	Ended func(taken bool)
	// Logger logs the state of the connection. Required.
	Logger *slog.Logger

	mu       sync.Mutex
	usages   []*nodev1.Usage // the latest
	measured wakeup.Signal   // set while usages are unsent
	refusal  error           // the last one; nil after a connection that was accepted
	refusals int             // since then
}

// refusalsCount is how many refusals in a row Refusal reports. A node that joins may be refused once or
// twice, until the controller knows it.
const refusalsCount = 3

// mismatchError says that the controller has another version of the protocol.
type mismatchError string

// Error implements error.
func (e mismatchError) Error() string { return string(e) }

// Refusal returns why the controller refuses this node, or "" if it does not. A controller that is not
// reached does not refuse.
func (c *Controller) Refusal() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusals < refusalsCount {
		return ""
	}
	var said interface{ GRPCStatus() *status.Status }
	if errors.As(c.refusal, &said) {
		return said.GRPCStatus().Message()
	}
	return c.refusal.Error()
}

// ended notes the end of a connection.
func (c *Controller) ended(taken bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if taken {
		c.refusal, c.refusals = nil, 0
	}
	if refuses(err) {
		c.refusal = err
		c.refusals++
	}
}

// refuses reports whether an error is a decision about this node. Other errors, such as a lost
// connection, are not.
func refuses(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.FailedPrecondition, codes.AlreadyExists, codes.Unauthenticated:
		return true
	}
	return errors.As(err, new(mismatchError))
}

// accepted notes that the controller has accepted the connection.
func (c *Controller) accepted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal, c.refusals = nil, 0
}

// SetUsages replaces the usages to send. They are sent now, and again on each new connection. The
// caller must not change them any more. It does not block.
func (c *Controller) SetUsages(usages []*nodev1.Usage) {
	c.mu.Lock()
	c.usages = usages
	c.mu.Unlock()
	c.measurements().Wake()
}

func (c *Controller) measurements() wakeup.Signal {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.measured == nil {
		c.measured = wakeup.New()
	}
	return c.measured
}

func (c *Controller) latest() []*nodev1.Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.usages
}

// Run maintains the connection until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	reconnect(ctx, "controller", c.Logger, c.Move, func(ctx context.Context) (bool, error) {
		taken, err := c.session(ctx)
		c.ended(taken, err)
		if c.Ended != nil {
			c.Ended(taken)
		}
		return taken, err
	})
	return nil
}

// errMoves ends a connection so that the next one goes to another server.
var errMoves = fmt.Errorf("%w: another server is the active one", errAgain)

// line is a stream on which many goroutines send.
type line struct {
	mu     sync.Mutex // gRPC allows only one sender at a time
	stream nodev1.Node_ConnectClient
}

func (l *line) send(m *nodev1.NodeMessage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stream.Send(m)
}

// session runs one connection. Its goroutines and sessions end with it.
func (c *Controller) session(ctx context.Context) (taken bool, err error) {
	conn, err := c.Dial(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	group, ctx := errgroup.WithContext(ctx)
	client := nodev1.NewNodeClient(conn)
	stream, err := client.Connect(ctx)
	if err != nil {
		return false, fmt.Errorf("connecting to the controller: %w", err)
	}
	l := &line{stream: stream}
	if err := l.send(&nodev1.NodeMessage{Message: &nodev1.NodeMessage_Hello{Hello: c.Hello}}); err != nil {
		_, err = stream.Recv()
		return false, fmt.Errorf("sending the first message to the controller: %w", err)
	}
	sessions := c.Sessions(ctx, client)
	c.Objects.Reconnected()
	group.Go(func() error { return c.receive(stream, sessions, &taken) })
	group.Go(func() error { return unlessEnded(c.ask(ctx, l)) })
	group.Go(func() error { return unlessEnded(c.measure(ctx, l)) })
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-c.Move:
			return errMoves
		}
	})
	err = group.Wait()
	sessions.Close()
	return taken, err
}

func (c *Controller) receive(stream nodev1.Node_ConnectClient, sessions Sessions, taken *bool) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("receiving from the controller: %w", err)
		}
		if hello := m.GetHello(); hello != nil {
			if err := c.compatible(hello); err != nil {
				return err
			}
			c.Logger.Info("connected to the controller", "version", hello.GetVersion())
		}
		if !*taken {
			*taken = true
			c.accepted()
		}
		switch {
		case m.GetObject() != nil:
			c.Objects.Deliver(m.GetObject())
		case m.GetOpen() != nil:
			sessions.Open(m.GetOpen())
		case m.GetClose() != nil:
			sessions.End(m.GetClose())
		case m.GetNetwork() != nil:
			if c.Network != nil {
				c.Network(m.GetNetwork())
			}
		case m.GetServers() != nil:
			if c.Servers != nil {
				c.Servers(m.GetServers())
			}
		}
	}
}

// compatible refuses a controller with another version of the protocol.
func (c *Controller) compatible(hello *nodev1.ControllerHello) error {
	mismatch := nodev1.Mismatch(c.Hello.GetNodeName(), nodev1.Program{Version: c.Hello.GetVersion(), Protocol: c.Hello.GetProtocol()},
		nodev1.Program{Version: hello.GetVersion(), Protocol: hello.GetProtocol()})
	if mismatch != "" {
		return mismatchError(mismatch)
	}
	return nil
}

// ask sends the pending requests for objects.
func (c *Controller) ask(ctx context.Context, l *line) error {
	for {
		for _, get := range c.Objects.PendingRequests() {
			if err := l.send(&nodev1.NodeMessage{Message: &nodev1.NodeMessage_Get{Get: get}}); err != nil {
				return fmt.Errorf("requesting an object from the controller: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.Objects.HasRequests():
		}
	}
}

// measure sends the latest usages, and then every newer ones. The controller may have restarted,
// or may be another one.
func (c *Controller) measure(ctx context.Context, l *line) error {
	news := c.measurements()
	for {
		for part := range slices.Chunk(c.latest(), nodev1.MaxUsages) {
			m := &nodev1.Measurements{Usages: part}
			if err := l.send(&nodev1.NodeMessage{Message: &nodev1.NodeMessage_Measurements{Measurements: m}}); err != nil {
				return fmt.Errorf("sending measurements to the controller: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-news:
		}
	}
}
