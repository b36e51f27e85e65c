package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/internal/rpc/nodev1"
)

// firstCredit is the number of bytes that a node may send before the user of a session has
// consumed any; see node.proto.
const firstCredit = 256 << 10

const (
	// maxSessions is the number of sessions on a node at a time. Further sessions are refused.
	maxSessions = 256
	// maxBare bounds the messages without data that wait for the user. Messages with data are
	// bounded by credit.
	maxBare = 1024
)

// Errors of sessions.
var (
	// ErrNodeNotConnected means that the node has no stream now.
	ErrNodeNotConnected = errors.New("the node is not connected")
	// ErrNodeLost means that the stream ended during the session.
	ErrNodeLost = errors.New("the connection to the node was lost")
	// ErrBusy means that no further session may be opened on the node now.
	ErrBusy = errors.New("too many sessions")
	// errOverrun means that a node sent more than its credit allowed.
	errOverrun = errors.New("the node sent more than it may")
)

// Open starts a session on a node. The session ends with ctx, with Close, or with the node's
// stream.
func (s *Server) Open(ctx context.Context, node string, open *nodev1.OpenStream) (*Session, error) {
	c := s.connection(node)
	if c == nil {
		return nil, fmt.Errorf("%w: %s", ErrNodeNotConnected, node)
	}
	session, err := c.register(s.bindings.namespace(types.UID(open.GetUid())))
	if err != nil {
		return nil, err
	}
	request := proto.CloneOf(open)
	request.Stream = session.id
	if err := c.send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Open{Open: request}}); err != nil {
		session.fail(err)
		return nil, fmt.Errorf("%w: %w", ErrNodeLost, err)
	}
	stop := context.AfterFunc(ctx, session.Close)
	session.mu.Lock()
	session.stop = stop
	ended := session.over || session.err != nil
	session.mu.Unlock()
	if ended { // it ended before stop was set
		stop()
	}
	return session, nil
}

func (c *connection) register(namespace string) (*Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone != nil {
		return nil, c.gone
	}
	if n := c.sessionsLocked(namespace); n >= maxSessions-len(c.sessions) {
		return nil, fmt.Errorf("%w: namespace %s has %d logs, commands and forwarded connections on node %s, and may have as many as are left for others", ErrBusy, namespace, n, c.node)
	}
	c.next++
	s := &Session{id: c.next, c: c, namespace: namespace, allowed: firstCredit, stop: func() bool { return true }}
	s.changed = sync.NewCond(&s.mu)
	c.sessions[s.id] = s
	return s, nil
}

// sessionsLocked counts the sessions of a namespace. A namespace may not have more sessions
// than it leaves to all others together, so a namespace without a session can always open one.
func (c *connection) sessionsLocked(namespace string) (n int) {
	for _, s := range c.sessions {
		if s.namespace == namespace {
			n++
		}
	}
	return n
}

// Session is a log, a command or a port on a node. Send and Recv may be called concurrently,
// each by one goroutine. The user grants and obeys credit: messages are passed on unchanged. A
// node that exceeds its credit loses the session, so that the queue is bounded.
type Session struct {
	id        int64
	c         *connection
	namespace string      // of the instance; empty if not known yet
	stop      func() bool // unregisters from the context of Open

	mu      sync.Mutex
	changed *sync.Cond
	queue   []*nodev1.StreamData // received, not yet read
	allowed int64                // what the node may still send
	bare    int                  // number of queued messages without data
	over    bool                 // the last message is in the queue or was read
	closed  bool                 // by us
	err     error                // the cause of a failure
}

// Recv returns the next message of the node. A message with Closed set is the last. After it,
// Recv returns io.EOF. After a failure, messages that had arrived are returned first.
func (s *Session) Recv() (*nodev1.StreamData, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) == 0 && !s.over && !s.closed && s.err == nil {
		s.changed.Wait()
	}
	if len(s.queue) == 0 {
		if s.err != nil {
			return nil, s.err
		}
		return nil, io.EOF
	}
	data := s.queue[0]
	s.queue = s.queue[1:]
	if len(data.GetData()) == 0 {
		s.bare--
	}
	return data, nil
}

// Send sends a message to the node.
func (s *Session) Send(data *nodev1.StreamData) error {
	s.mu.Lock()
	err := s.err
	if err == nil && (s.over || s.closed) {
		err = io.ErrClosedPipe
	}
	s.allowed += data.GetCredit()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.transmit(proto.CloneOf(data))
}

func (s *Session) transmit(data *nodev1.StreamData) error {
	data.Stream = s.id
	if err := s.c.send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Data{Data: data}}); err != nil {
		return fmt.Errorf("%w: %w", ErrNodeLost, err)
	}
	return nil
}

// Close ends the session and informs the node, unless the session had already ended. A second
// call does nothing.
func (s *Session) Close() {
	s.mu.Lock()
	send := !s.closed && !s.over && s.err == nil
	s.closed = true
	s.queue = nil
	s.changed.Broadcast()
	s.mu.Unlock()
	s.leave()
	if send {
		// If sending fails, the node's stream has ended, and the session with it.
		_ = s.transmit(&nodev1.StreamData{Closed: true})
	}
}

// deliver queues a message of the node. It does not block.
func (s *Session) deliver(data *nodev1.StreamData) {
	s.mu.Lock()
	s.allowed -= int64(len(data.GetData()))
	if len(data.GetData()) == 0 {
		s.bare++
	}
	if !data.GetClosed() {
		data.Error = "" // an error counts only in the last message, and may be long
	}
	overrun := s.allowed < 0 || s.bare > maxBare
	if !s.closed && !overrun {
		s.queue = append(s.queue, data)
	}
	last := data.GetClosed()
	s.over = s.over || last
	s.changed.Broadcast()
	s.mu.Unlock()
	switch {
	case overrun:
		s.fail(errOverrun)
		_ = s.transmit(&nodev1.StreamData{Closed: true, Error: errOverrun.Error()})
	case last:
		s.leave()
	}
}

// fail ends the session with an error.
func (s *Session) fail(err error) {
	s.mu.Lock()
	if s.err == nil && !s.over {
		s.err = err
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	s.leave()
}

// leave removes the session from its connection.
func (s *Session) leave() {
	s.c.mu.Lock()
	delete(s.c.sessions, s.id)
	s.c.mu.Unlock()
	s.mu.Lock()
	stop := s.stop
	s.mu.Unlock()
	stop()
}
