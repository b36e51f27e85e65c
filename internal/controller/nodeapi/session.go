package nodeapi

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/rpc/nodev1"
)

const (
	// openTimeout is how long a node may take to open the stream of a session.
	openTimeout = 10 * time.Second
	// maxReason is the length at which a node's reason for the end of a session is cut.
	maxReason = 4 << 10
)

// Errors of sessions.
var (
	// ErrNodeNotConnected means that the node has no stream now.
	ErrNodeNotConnected = errors.New("the node is not connected")
	// ErrNodeLost means that the stream ended during the session.
	ErrNodeLost = errors.New("the connection to the node was lost")
	// ErrNotOpened means that the node has not opened the session in time.
	ErrNotOpened = errors.New("the node did not open the session")
	// ErrBusy means that no further session may be opened on the node now.
	ErrBusy = errors.New("too many sessions")
	// errMisused means that a node sent what the protocol does not allow.
	errMisused = errors.New("the node sent a message that is not allowed in a session")
)

// Open announces a session to a node and returns when the node has opened its stream. The
// session ends with ctx, with Close, or with the node's connection. It sets the number and the
// secret of the announcement.
func (s *Server) Open(ctx context.Context, node string, open *nodev1.OpenSession) (*Session, error) {
	c := s.connection(node)
	if c == nil {
		return nil, fmt.Errorf("%w: %s", ErrNodeNotConnected, node)
	}
	session, err := c.register(s.bindings.namespace(types.UID(open.GetUid())))
	if err != nil {
		return nil, err
	}
	session.follow(ctx)
	announced := proto.CloneOf(open)
	announced.Session, announced.Secret = session.id, session.secret
	c.order(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Open{Open: announced}})
	if err := session.await(ctx); err != nil {
		return nil, err
	}
	return session, nil
}

func (c *connection) register(namespace string) (*Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone != nil {
		return nil, c.gone
	}
	if n := c.sessionsLocked(namespace); n >= nodev1.MaxSessions-len(c.sessions) {
		return nil, fmt.Errorf("%w: namespace %s has %d sessions (logs, commands and forwarded connections) on node %s; a namespace cannot have more sessions than are free on the node", ErrBusy, namespace, n, c.node)
	}
	c.next++
	s := &Session{
		id: c.next, secret: []byte(rand.Text()), c: c, namespace: namespace,
		opened: make(chan struct{}), done: make(chan struct{}), unfollow: func() bool { return true },
	}
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

// Session serves the stream that a node opens for an announced session.
func (f *listenerService) Session(stream grpc.BidiStreamingServer[nodev1.SessionOutput, nodev1.SessionInput]) error {
	caller, err := f.caller(stream.Context())
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	s, err := f.announced(caller, first.GetStart())
	if err != nil {
		f.log.Warn("refused the stream of a session", "node", first.GetStart().GetNodeName(), "from", f.from(stream.Context()), "err", err)
		return err
	}
	return s.serve(stream)
}

// announced returns the session of a start, for the node that it was announced to. All refusals
// are the same, so that a node learns nothing about sessions of others.
func (f *listenerService) announced(caller identity, start *nodev1.SessionStart) (*Session, error) {
	node := start.GetNodeName()
	refused := status.Errorf(codes.PermissionDenied, "session %d is not announced to node %q, or its user is gone", start.GetSession(), node)
	if !f.trusted && caller.name != node {
		return nil, refused
	}
	c := f.connection(node)
	if c == nil || c.certificate != caller.uid {
		return nil, refused
	}
	c.mu.Lock()
	s := c.sessions[start.GetSession()]
	c.mu.Unlock()
	if s == nil || subtle.ConstantTimeCompare(s.secret, start.GetSecret()) != 1 || !s.claim() {
		return nil, refused
	}
	return s, nil
}

// Session is a log, a command or a port on a node. It is one stream with the flow control of
// HTTP/2. Send blocks while the node does not read, and the node's writers block while Recv is not
// called. Send may be called by several goroutines, and Recv by one at a time.
type Session struct {
	id        int64
	secret    []byte
	c         *connection
	namespace string        // of the instance; empty if not known yet
	opened    chan struct{} // closed when the node has opened the stream
	done      chan struct{} // closed when the session has ended

	sending sync.Mutex // serializes the stream's Send, which gRPC does not allow concurrently

	mu       sync.Mutex
	claimed  bool        // a stream has shown the secret
	unfollow func() bool // unregisters from the context of Open
	stream   grpc.BidiStreamingServer[nodev1.SessionOutput, nodev1.SessionInput]
	ended    error // io.EOF after the last message and after Close
}

// follow ends the session with ctx.
func (s *Session) follow(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unfollow = context.AfterFunc(ctx, s.Close)
}

// await waits until the node has opened the stream.
func (s *Session) await(ctx context.Context) error {
	timer := time.NewTimer(openTimeout)
	defer timer.Stop()
	select {
	case <-s.opened:
		return nil
	case <-timer.C:
		err := fmt.Errorf("%w within %v", ErrNotOpened, openTimeout)
		if s.finish(err) {
			s.withdraw()
		}
		return err
	case <-s.done:
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return s.end()
	}
}

// claim reports whether this is the first stream of the session.
func (s *Session) claim() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.claimed && s.ended == nil
	s.claimed = true
	return first
}

// serve lends the stream to the user of the session until the session ends.
func (s *Session) serve(stream grpc.BidiStreamingServer[nodev1.SessionOutput, nodev1.SessionInput]) error {
	// The node acts when it has received the headers.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		s.finish(ErrNodeLost)
		return err
	}
	s.mu.Lock()
	s.stream = stream
	s.mu.Unlock()
	close(s.opened)
	select {
	case <-s.done:
	case <-stream.Context().Done():
		s.finish(ErrNodeLost)
	}
	if err := s.end(); !errors.Is(err, io.EOF) {
		return status.Error(codes.Aborted, err.Error())
	}
	return nil
}

// Recv returns the next message of the node. A SessionEnd is the last. After it, and after
// Close, Recv returns io.EOF.
func (s *Session) Recv() (*nodev1.SessionOutput, error) {
	if err := s.end(); err != nil {
		return nil, err
	}
	message, err := s.stream.Recv()
	if err == nil {
		err = checked(message)
	} else if status.Code(err) == codes.ResourceExhausted {
		err = fmt.Errorf("%w: %s", errMisused, status.Convert(err).Message())
	} else {
		err = ErrNodeLost
	}
	switch {
	case errors.Is(err, errMisused):
		// gRPC ends the stream of a message that is too large, which must not count as a lost node.
		s.finish(err)
		return nil, err
	case err != nil:
		// If the session had ended for another reason, this error follows from that.
		s.finish(err)
		return nil, s.end()
	}
	if message.GetEnd() != nil {
		s.finish(io.EOF)
	}
	return message, nil
}

// checked validates a message of a node.
func checked(message *nodev1.SessionOutput) error {
	switch m := message.GetMessage().(type) {
	case *nodev1.SessionOutput_Output:
		if n := len(m.Output.GetData()); n > nodev1.MaxPiece {
			return fmt.Errorf("%w: a piece of %d bytes, and %d are allowed", errMisused, n, nodev1.MaxPiece)
		}
	case *nodev1.SessionOutput_EndOfOutput:
	case *nodev1.SessionOutput_End:
		m.End.Error = excerpt.Of(m.End.GetError(), maxReason)
	default:
		return errMisused
	}
	return nil
}

// Send sends a message to the node. It blocks while the node does not read.
func (s *Session) Send(message *nodev1.SessionInput) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	switch err := s.end(); {
	case errors.Is(err, io.EOF):
		return io.ErrClosedPipe
	case err != nil:
		return err
	}
	if err := s.stream.Send(message); err != nil {
		return fmt.Errorf("%w: %w", ErrNodeLost, err)
	}
	return nil
}

// Close ends the session and informs the node, unless the session had already ended. It does
// not block. A second call does nothing.
func (s *Session) Close() {
	if s.finish(io.EOF) {
		s.withdraw()
	}
}

// withdraw sends the node the end of the session. The end of the stream does not reach a node that
// has not opened it yet, or whose instance does not read its input.
func (s *Session) withdraw() {
	s.c.order(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Close{Close: &nodev1.CloseSession{Session: s.id}}})
}

// finish ends the session with an error, or with io.EOF for a good end. It reports whether the
// session had not ended yet.
func (s *Session) finish(err error) bool {
	s.mu.Lock()
	if s.ended != nil {
		s.mu.Unlock()
		return false
	}
	s.ended = err
	unfollow := s.unfollow
	s.mu.Unlock()
	close(s.done)
	unfollow()
	s.c.mu.Lock()
	delete(s.c.sessions, s.id)
	s.c.mu.Unlock()
	return true
}

// end returns why the session has ended, or nil.
func (s *Session) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}
