package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"rik.dev/rik/internal/riklet/guest/wire"
)

// ErrBusy is returned when a guest has as many streams as it may; one that does not
// answer holds on to all that it ever got.
var ErrBusy = errors.New("the guest has too many open streams")

// Session is the node's end of a channel. Any goroutine may use it.
type Session struct {
	mux   *yamux.Session
	slots chan struct{} // one for each stream that is not entirely gone
}

// dialInterval is the pause between attempts to reach a VMM's socket.
const dialInterval = 20 * time.Millisecond

// Connect reaches a guest's init, however long that takes to boot: it returns when the
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
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("reaching the guest at %s: %w (at last: %w)", c.Socket, context.Cause(ctx), failure)
		case <-time.After(dialInterval):
		}
	}
}

// dial connects once. A VMM that maps vsock refuses while nobody listens in the guest.
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

// NewSession greets the init at the other end of a connection and begins a session
// with it. The connection is the session's from then on, also when this fails.
func NewSession(ctx context.Context, conn net.Conn) (*Session, error) {
	if err := wire.Greet(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	mux, err := wire.Node(conn)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("beginning a session with the guest: %w", err)
	}
	return &Session{mux: mux, slots: make(chan struct{}, wire.Streams)}, nil
}

// Open opens one stream; it is an Opener. ErrBusy when there are too many.
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
		// Whenever it does open, it is closed; until then it counts.
		go func() {
			if r := <-result; r.err == nil {
				_ = r.stream.Close()
			}
			<-s.slots
		}()
		return nil, fmt.Errorf("opening a stream to the guest: %w", context.Cause(ctx))
	}
}

// Done is closed when the session has ended, whoever ended it.
func (s *Session) Done() <-chan struct{} { return s.mux.CloseChan() }

// Close ends the session and all its streams.
func (s *Session) Close() error { return s.mux.Close() }

// stream makes a multiplexer's stream what a net.Conn promises: Close and deadlines
// end a Write that waits, even when the guest reads nothing.
type stream struct {
	*yamux.Stream
	session *Session
	writes  chan []byte
	results chan written
	closed  chan struct{}

	writing sync.Mutex // one Write at a time, so that results are its own
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

// Write hands a copy to the stream's own writer, and stops waiting for it when the
// stream is closed. A Write that did not end leaves the stream unusable for others.
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
		_ = s.Close() // half a message was written: nothing sensible can follow
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
		_ = s.SetReadDeadline(time.Unix(1, 0)) // ends a Read that waits
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
