package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/guest/wire"
)

// ErrBusy is returned if a guest has the maximum number of streams. A guest that does not answer
// keeps all its streams.
var ErrBusy = errors.New("the guest has too many open streams")

// Session is the node's end of a channel. It is safe for concurrent use.
type Session struct {
	mux   *yamux.Session
	slots chan struct{} // one for each stream that is not completely closed
}

// dialInterval is the pause between attempts to reach a VMM's socket.
const dialInterval = 20 * time.Millisecond

// Connect connects to a guest's init, and waits until the guest has booted. It returns when the
// init has answered, or with ctx's cause.
func Connect(ctx context.Context, c Channel) (*Session, error) {
	var failure error
	for {
		conn, err := dial(ctx, c)
		if err == nil {
			return NewSession(ctx, conn)
		}
		if !errors.Is(err, ctx.Err()) || failure == nil {
			failure = err
		}
		if !pause.For(ctx, dialInterval) {
			return nil, fmt.Errorf("connecting to the guest at %s: %w (last error: %w)", c.Socket, context.Cause(ctx), failure)
		}
	}
}

// dial connects once. A VMM that maps vsock refuses the connection while no program listens in
// the guest.
func dial(ctx context.Context, c Channel) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.Socket)
	if err != nil || c.VsockPort == 0 {
		return conn, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := wire.Vsock(conn, c.VsockPort); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// NewSession greets the init at the other end of a connection and starts a session with it. The
// session owns the connection, also if NewSession fails.
func NewSession(ctx context.Context, conn net.Conn) (*Session, error) {
	if err := wire.Greet(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	mux, err := wire.Node(conn)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("starting a session with the guest: %w", err)
	}
	return &Session{mux: mux, slots: make(chan struct{}, wire.Streams)}, nil
}

// Open opens one stream; it is an Opener. It returns ErrBusy if there are too many streams.
func (s *Session) Open(ctx context.Context) (net.Conn, error) {
	select {
	case s.slots <- struct{}{}:
	default:
		return nil, ErrBusy
	}
	type opened struct {
		stream *yamux.Stream
		err    error
	}
	result := make(chan opened, 1)
	go func() {
		stream, err := s.mux.OpenStream()
		result <- opened{stream, err}
	}()
	select {
	case r := <-result:
		if r.err != nil {
			<-s.slots
			return nil, fmt.Errorf("opening a stream to the guest: %w", r.err)
		}
		return newStream(s, r.stream), nil
	case <-ctx.Done():
		// If the stream is opened later, it is closed then. Until then it counts.
		go func() {
			if r := <-result; r.err == nil {
				_ = r.stream.Close()
			}
			<-s.slots
		}()
		return nil, fmt.Errorf("opening a stream to the guest: %w", context.Cause(ctx))
	}
}

// Done returns a channel that is closed when the session has ended, on either side.
func (s *Session) Done() <-chan struct{} { return s.mux.CloseChan() }

// Close ends the session and all its streams.
func (s *Session) Close() error { return s.mux.Close() }

// stream gives a yamux stream the behavior of a net.Conn: Close and deadlines end a blocked
// Write, even if the guest reads nothing.
type stream struct {
	*yamux.Stream
	session *Session
	writes  chan []byte
	results chan written
	closed  chan struct{}

	writing sync.Mutex // one Write at a time, so that each gets its own result
	once    sync.Once
	started sync.Once

	mu       sync.Mutex
	deadline time.Time // of writes
}

type written struct {
	n   int
	err error
}

func newStream(s *Session, y *yamux.Stream) *stream {
	return &stream{Stream: y, session: s, writes: make(chan []byte), results: make(chan written, 1), closed: make(chan struct{})}
}

// Write passes a copy to the stream's writer goroutine, and stops waiting for it when the stream
// is closed. After an interrupted Write the stream is unusable.
func (s *stream) Write(p []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.started.Do(func() { go s.writer() })
	var timeout <-chan time.Time
	s.mu.Lock()
	deadline := s.deadline
	s.mu.Unlock()
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case s.writes <- append([]byte(nil), p...):
	case <-s.closed:
		return 0, net.ErrClosed
	case <-timeout:
		return 0, yamux.ErrTimeout
	}
	select {
	case w := <-s.results:
		return w.n, w.err
	case <-s.closed:
		return 0, net.ErrClosed
	case <-timeout:
		_ = s.Close() // half a message was written, so the stream is unusable
		return 0, yamux.ErrTimeout
	}
}

func (s *stream) writer() {
	for {
		select {
		case p := <-s.writes:
			n, err := s.Stream.Write(p)
			s.results <- written{n, err}
		case <-s.closed:
			return
		}
	}
}

// Close never waits for the guest.
func (s *stream) Close() error {
	s.once.Do(func() {
		close(s.closed)
		_ = s.SetReadDeadline(time.Unix(1, 0)) // ends a blocked Read
		go func() {
			_ = s.Stream.Close()
			<-s.session.slots
		}()
	})
	return nil
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	s.deadline = t
	s.mu.Unlock()
	return nil
}

func (s *stream) SetDeadline(t time.Time) error {
	_ = s.SetWriteDeadline(t)
	return s.SetReadDeadline(t)
}
