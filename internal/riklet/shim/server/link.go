package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/wire"
	"rik.dev/rik/internal/riklet/shim"
)

// session has the methods of guest.Session that the supervisor uses.
type session interface {
	// Open opens a stream. The stream's Close never blocks, not even for the guest.
	Open(ctx context.Context) (net.Conn, error)
	// Done is closed when the session has ended, on either side.
	Done() <-chan struct{}
	Close() error
}

func connectGuest(ctx context.Context, c guest.Channel) (session, error) {
	s, err := guest.Connect(ctx, c)
	if err != nil {
		return nil, err // not s, because a nil pointer in the interface is not nil
	}
	return s, nil
}

const (
	// defaultTimeout is for a Link without a timeout. A guest boots in seconds, and under
	// software emulation in tens of seconds.
	defaultTimeout = 2 * time.Minute
	// maxForwarded is how many connections other processes may have to the guest at the same
	// time. It reserves some of the wire.Streams for the supervisor's own runs and signals.
	maxForwarded = wire.Streams - 64
	// openTimeout is the timeout for opening the stream of one connection.
	openTimeout = 30 * time.Second
	// acceptPause limits the rate of log lines if the process runs out of file descriptors.
	acceptPause = time.Second
)

var errChannelEnded = errors.New("the channel to the guest has ended: the microVM or its guest init has ended")

// line is the channel to a guest, from the request to open it until it has ended.
type line struct {
	order shim.Link
	ready chan struct{} // closed when the guest has answered, or failed to
	ended chan struct{} // closed when all of it has been released
	// The following fields are written before ready is closed. session is nil if err is set.
	err     error
	session session
	guest   guest.Guest
	// ctx ends with the session. Runs in the guest use it.
	ctx context.Context //nolint:containedctx // it is the session's life, as a value
}

// open reports whether the guest can be reached.
func (l *line) open() bool {
	select {
	case <-l.ready:
		return l.err == nil && l.ctx.Err() == nil
	default:
		return false
	}
}

// link opens the guest's channel and shares it. A repeated request finds the existing line.
func (s *Server) link(o shim.Link) error {
	l, mine, err := s.lineFor(o)
	if err != nil {
		return err
	}
	if !mine {
		<-l.ready
		return l.err
	}
	s.group.Go(func() { s.hold(l) })
	<-l.ready
	return l.err
}

// lineFor returns the line of a request, and whether the caller must run it.
func (s *Server) lineFor(o shim.Link) (*line, bool, error) {
	for {
		s.mu.Lock()
		l := s.line
		if l == nil {
			l = &line{order: o, ready: make(chan struct{}), ended: make(chan struct{})}
			s.line = l
			s.mu.Unlock()
			return l, true, nil
		}
		s.mu.Unlock()
		select {
		case <-l.ready:
			if !l.open() {
				<-l.ended // and replace it
				continue
			}
		default:
		}
		if l.order.Channel != o.Channel || l.order.Socket != o.Socket {
			return nil, false, fmt.Errorf("the supervisor already holds the channel %s and serves it at %s: a microVM has only one", l.order.Channel.Socket, l.order.Socket)
		}
		return l, false, nil
	}
}

// hold runs a line until its end.
func (s *Server) hold(l *line) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer func() {
		cancel(errChannelEnded)
		s.mu.Lock()
		s.line = nil
		s.mu.Unlock()
		close(l.ended)
	}()
	stopped := make(chan struct{})
	defer close(stopped)
	go func() {
		select {
		case <-s.end:
			cancel(errors.New("the supervisor ends"))
		case <-stopped:
		}
	}()
	listener, err := s.take(ctx, l)
	l.ctx, l.err = ctx, err
	close(l.ready)
	if err != nil {
		return
	}
	var forwarded sync.WaitGroup
	forwarded.Go(func() { l.forwardConnections(ctx, listener) })
	select {
	case <-l.session.Done():
		cancel(errChannelEnded)
	case <-ctx.Done():
	}
	_ = listener.Close()
	_ = l.session.Close()
	forwarded.Wait()
}

// take waits for the guest and creates the socket.
func (s *Server) take(ctx context.Context, l *line) (*net.UnixListener, error) {
	timeout := time.Duration(l.order.TimeoutMillis) * time.Millisecond
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the guest init did not answer within %v", timeout))
	defer cancel()
	channel, err := s.connect(ctx, l.order.Channel)
	if err != nil {
		return nil, err
	}
	listener, err := forwardAt(l.order.Socket)
	if err != nil {
		return nil, errors.Join(err, channel.Close())
	}
	l.session, l.guest = channel, guest.New(channel.Open)
	return listener, nil
}

func forwardAt(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing an old guest socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("creating the guest socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("setting the owner of the guest socket to root: %w", err), listener.Close())
	}
	return listener, nil
}

// forwardConnections opens a stream for every connection.
func (l *line) forwardConnections(ctx context.Context, listener *net.UnixListener) {
	var group sync.WaitGroup
	defer group.Wait()
	slots := make(chan struct{}, maxForwarded)
	for {
		conn, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "serving the channel to the guest: %v\n", err)
			time.Sleep(acceptPause)
			continue
		}
		select {
		case slots <- struct{}{}:
			group.Go(func() {
				defer func() { <-slots }()
				l.splice(ctx, conn)
			})
		default:
			refuseConnection(conn, fmt.Errorf("%w: %d are open", guest.ErrBusy, maxForwarded))
		}
	}
}

// splice connects a connection and a new stream until one of them ends. The protocol does not
// use half-closed streams.
func (l *line) splice(ctx context.Context, conn *net.UnixConn) {
	opening, cancel := context.WithTimeoutCause(ctx, openTimeout, fmt.Errorf("the guest opened no stream within %v", openTimeout))
	stream, err := l.session.Open(opening)
	cancel()
	if err != nil {
		refuseConnection(conn, err)
		return
	}
	disconnect := sync.OnceFunc(func() { _ = errors.Join(conn.Close(), stream.Close()) })
	stop := context.AfterFunc(ctx, disconnect)
	defer stop()
	var group sync.WaitGroup
	group.Go(func() {
		defer disconnect()
		copySmall(stream, conn)
	})
	copySmall(conn, stream)
	disconnect()
	group.Wait()
}

// copySmall copies with a small buffer, because there may be hundreds.
func copySmall(to io.Writer, from io.Reader) {
	// The wrappers hide methods with which io would use its own buffer. An error means only that
	// one of the two has ended.
	_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 8<<10))
}

// refuseConnection answers a connection itself, without a stream to the guest.
func refuseConnection(conn *net.UnixConn, err error) {
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_ = wire.WriteLine(conn, guest.Answer{Failure: guest.NewFailure(fmt.Errorf("(its supervisor) %w", err))})
	_ = conn.Close()
}
