package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/measurement"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/wakeup"
)

const (
	// questionsAtOnce bounds how many requests of one node are answered at a time.
	questionsAtOnce = 32
	// maxOrders limits the announcements and ends of sessions that wait for a node to read them. It
	// is twice what the sessions that may exist need, so a node that reads does not reach it.
	maxOrders = 4 * nodev1.MaxSessions
)

var (
	errReplaced   = errors.New("the node has opened another connection")
	errNotReading = fmt.Errorf("the node does not read its connection: %d messages about sessions wait", maxOrders)
)

// connection is one stream of one node.
type connection struct {
	node string
	from string    // address of the peer, for people
	run  string    // of the riklet; empty if it does not send one
	uid  types.UID // of its Node; empty if that is not known
	// certificate is the UID in the node's certificate. The streams of sessions show the same.
	certificate types.UID
	stream      grpc.BidiStreamingServer[nodev1.NodeMessage, nodev1.ControllerMessage]
	end         context.CancelCauseFunc
	ctx         context.Context //nolint:containedctx // the stream's own, which ends with it

	// sending serializes Send, which gRPC does not allow concurrently.
	sending sync.Mutex

	mu       sync.Mutex
	given    map[objectKey]bool // objects whose changes are sent to the node
	dirty    map[objectKey]bool // given objects that have changed
	wake     wakeup.Signal      // set while dirty is not empty
	sessions map[int64]*Session // announced, and not ended
	next     int64
	orders   []*nodev1.ControllerMessage // announcements and ends of sessions, not yet sent
	ordered  wakeup.Signal               // set while orders is not empty
	gone     error                       // why no session can be opened any more
}

func newConnection(ctx context.Context, end context.CancelCauseFunc, node string, stream grpc.BidiStreamingServer[nodev1.NodeMessage, nodev1.ControllerMessage]) *connection {
	return &connection{
		node: node, stream: stream, ctx: ctx, end: end,
		given: map[objectKey]bool{}, dirty: map[objectKey]bool{}, wake: wakeup.New(),
		sessions: map[int64]*Session{}, ordered: wakeup.New(),
	}
}

// Connect serves one node until its stream ends.
func (f *listenerService) Connect(stream grpc.BidiStreamingServer[nodev1.NodeMessage, nodev1.ControllerMessage]) error {
	caller, err := f.hello(stream)
	if err != nil {
		return err
	}
	node, certificate := caller.name, caller.uid
	if !f.trusted {
		if caller.uid, err = f.checkNotRevoked(stream.Context(), caller); err != nil {
			return err
		}
	}
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	c := newConnection(ctx, end, node, stream)
	c.uid, c.certificate, c.run, c.from = caller.uid, certificate, caller.run, f.from(ctx)
	// Check before the first message. A riklet that receives it assumes that it was accepted. A
	// riklet that was refused increases its delay before each retry.
	if err := f.refusal(c); err != nil {
		f.log.Warn("refused a node", "node", node, "from", c.from, "err", err)
		return err
	}
	if err := c.send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Hello{Hello: &nodev1.ControllerHello{Version: f.cfg.Version, Protocol: nodev1.Protocol}}}); err != nil {
		return err
	}
	if err := f.enter(c); err != nil {
		return err
	}
	defer f.leave(c)
	f.log.Info("node connected", "node", node)

	var work sync.WaitGroup
	work.Go(func() { f.refreshes(c) })
	work.Go(c.sendOrders)
	work.Go(func() { f.sendNetwork(c) })
	work.Go(func() { f.sendServers(c) })
	received := make(chan error, 1)
	work.Go(func() { received <- f.receive(c, &work) })
	select {
	case err = <-received:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	end(err)
	c.close(err)
	f.log.Info("node disconnected", "node", node, "err", err)
	if errors.Is(err, errReplaced) {
		// The stream's reader ends when the handler returns.
		return status.Error(codes.Aborted, err.Error())
	}
	return err
}

// from returns where a caller connects from, for messages to people.
func (f *listenerService) from(ctx context.Context) string {
	if f.trusted {
		return "the server's own process"
	}
	return remoteHost(ctx)
}

// nodeGone ends the connection of a node whose Node was deleted, and marks the Node so that
// connections that are being set up are refused.
func (s *Server) nodeGone(node *rikv1alpha1.Node) {
	s.mu.Lock()
	s.gone[node.UID] = true
	c := s.nodes[node.Name]
	s.mu.Unlock()
	if c != nil && c.uid == node.UID {
		c.end(errRevoked(node.Name))
	}
}

// hello reads the first message and returns the identity of the node.
func (f *listenerService) hello(stream grpc.BidiStreamingServer[nodev1.NodeMessage, nodev1.ControllerMessage]) (identity, error) {
	caller, err := f.caller(stream.Context())
	if err != nil {
		return identity{}, err
	}
	first, err := stream.Recv()
	if err != nil {
		return identity{}, err
	}
	said := first.GetHello().GetNodeName()
	mismatch := nodev1.Mismatch(said, nodev1.Program{Version: first.GetHello().GetVersion(), Protocol: first.GetHello().GetProtocol()},
		nodev1.Program{Version: f.cfg.Version, Protocol: nodev1.Protocol})
	switch {
	case said == "":
		return identity{}, status.Error(codes.InvalidArgument, "the first message must be Hello with the node's name")
	case caller.name != "" && said != caller.name:
		return identity{}, status.Errorf(codes.PermissionDenied, "the certificate belongs to node %s, not to node %s", caller.name, said)
	case mismatch != "":
		f.log.Warn("refused a node", "node", said, "from", f.from(stream.Context()), "err", mismatch)
		return identity{}, status.Error(codes.FailedPrecondition, mismatch)
	}
	caller.name, caller.run = said, first.GetHello().GetRunId()
	return caller, nil
}

// receive reads until the stream ends. Requests are answered in other goroutines, so that a
// slow answer does not delay others.
func (f *listenerService) receive(c *connection, work *sync.WaitGroup) error {
	places := make(chan struct{}, questionsAtOnce)
	for {
		message, err := c.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch m := message.GetMessage().(type) {
		case *nodev1.NodeMessage_Get:
			key := objectKey{m.Get.GetKind(), m.Get.GetNamespace(), m.Get.GetName()}
			select {
			case places <- struct{}{}:
			case <-c.ctx.Done():
				return context.Cause(c.ctx)
			}
			work.Go(func() {
				defer func() { <-places }()
				f.give(c, key)
			})
		case *nodev1.NodeMessage_Measurements:
			f.measured(c, m.Measurements)
		default:
			return status.Error(codes.InvalidArgument, "unexpected message after the hello")
		}
	}
}

// measured stores what a node has measured. Only the node's current connection counts.
func (s *Server) measured(c *connection, m *nodev1.Measurements) {
	ignored := s.cfg.Measurements.Take(measurement.Sender{
		Node:      c.node,
		Connected: func() bool { return c.ctx.Err() == nil },
		Owns:      func(uid types.UID) bool { return s.bindings.owns(c.node, uid) },
	}, m)
	if ignored > 0 {
		s.log.Debug("ignored measurements of a node: they are not of its instances, or not possible", "node", c.node, "count", ignored)
	}
}

// give answers one request.
func (s *Server) give(c *connection, key objectKey) {
	// The key is noted before the object is read. If the object changes in between, it is sent
	// once more.
	c.note(key, true)
	object, keep := s.answer(c.ctx, c.node, key)
	if !keep {
		c.note(key, false)
	}
	if c.ctx.Err() != nil {
		return
	}
	if err := c.send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Object{Object: object}}); err != nil {
		c.end(fmt.Errorf("sending to node %s: %w", c.node, err))
	}
}

// refreshes sends the objects given to the node again when they change. An object to which no
// instance of the node refers any longer is not sent again.
func (s *Server) refreshes(c *connection) {
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
		}
		for _, key := range c.takeDirty() {
			s.give(c, key)
		}
	}
}

func (c *connection) note(key objectKey, given bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if given {
		c.given[key] = true
	} else {
		delete(c.given, key)
	}
}

// refresh records that an object changed. It does not block.
func (c *connection) refresh(key objectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.given[key] {
		return
	}
	c.dirty[key] = true
	c.wake.Wake()
}

func (c *connection) takeDirty() []objectKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := make([]objectKey, 0, len(c.dirty))
	for key := range c.dirty {
		keys = append(keys, key)
	}
	clear(c.dirty)
	return keys
}

// send may block while the node does not read. Keepalive then ends the stream.
func (c *connection) send(m *nodev1.ControllerMessage) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.stream.Send(m)
}

// order queues the announcement or the end of a session. It does not block, so a node that does
// not read delays no user.
func (c *connection) order(m *nodev1.ControllerMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.orders) >= maxOrders {
		c.end(errNotReading) // only the first call counts
		return
	}
	c.orders = append(c.orders, m)
	c.ordered.Wake()
}

func (c *connection) takeOrders() []*nodev1.ControllerMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	orders := c.orders
	c.orders = nil
	return orders
}

// sendOrders sends the queued orders until the connection ends.
func (c *connection) sendOrders() {
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.ordered:
		}
		for _, m := range c.takeOrders() {
			if err := c.send(m); err != nil {
				c.end(fmt.Errorf("sending to node %s: %w", c.node, err))
				return
			}
		}
	}
}

// close ends every session with the reason.
func (c *connection) close(reason error) {
	lost := ErrNodeLost
	// Canceled is how a stream reports that its connection has ended, so it is not added as a
	// reason.
	if reason != nil && status.Code(reason) != codes.Canceled && !errors.Is(reason, context.Canceled) {
		lost = fmt.Errorf("%w: %w", ErrNodeLost, reason)
	}
	c.mu.Lock()
	c.gone = lost
	sessions := slices.Collect(maps.Values(c.sessions))
	c.mu.Unlock()
	for _, s := range sessions {
		s.finish(lost)
	}
}
