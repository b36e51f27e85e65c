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

// session is what the supervisor needs of a guest's channel: guest.Session.
type session interface {
	// Open opens a stream. Its Close waits for nobody, also not for the guest.
	Open(ctx context.Context) (net.Conn, error)
	// Done is closed when the session has ended, whoever ended it.
	Done() <-chan struct{}
	Close() error
}

func connectGuest(ctx context.Context, c guest.Channel) (session, error) {
	s, err := guest.Connect(ctx, c)
	if err != nil {
		return nil, err // not s, which would be a session that is no nil
	}
	return s, nil
}

const (
	// defaultTimeout is for a Link without any: a guest boots in seconds, under
	// software emulation in tens of them.
	defaultTimeout = 2 * time.Minute
	// lentStreams is how many connections others may have to the guest at once. It
	// leaves the supervisor's own runs and signals some of the wire.Streams.
	lentStreams = wire.Streams - 64
	// openTimeout bounds the wait of one connection for its stream.
	openTimeout = 30 * time.Second
	// acceptPause keeps a lack of descriptors from filling the disk with complaints.
	acceptPause = time.Second
)

var errChannelEnded = errors.New("the channel to the microVM's guest has ended: the microVM is gone, or its init is")

// line is the channel to a guest, from the order to take it until it has ended.
type line struct {
	order shim.Link
	ready chan struct{} // closed when the guest has answered, or has not
	ended chan struct{} // closed when nothing of it is left
	// What follows is written before ready is closed. session is nil if err is not.
	err     error
	session session
	guest   guest.Guest
	// ctx ends with the session; runs in the guest live as long.
	ctx context.Context //nolint:containedctx // it is the session's life, as a value
}

// open says whether the guest can be talked to.
func (l *line) open() bool {
	select {
	case <-l.ready:
		return l.err == nil && l.ctx.Err() == nil
	default:
		return false
	}
}

// link takes hold of the guest's channel and lends it. An order that is being obeyed,
// or was, is found again.
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

// lineFor gives the line of an order, and whether the caller has to hold it.
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
				<-l.ended // and take its place
				continue
			}
		default:
		}
		if l.order.Channel != o.Channel || l.order.Socket != o.Socket {
			return nil, false, fmt.Errorf("the supervisor holds the channel %s and lends it at %s: a microVM has one", l.order.Channel.Socket, l.order.Socket)
		}
		return l, false, nil
	}
}

// hold is the life of a line.
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
	var lent sync.WaitGroup
	lent.Go(func() { l.lend(ctx, listener) })
	select {
	case <-l.session.Done():
		cancel(errChannelEnded)
	case <-ctx.Done():
	}
	_ = listener.Close()
	_ = l.session.Close()
	lent.Wait()
}

// take waits for the guest and makes the socket.
func (s *Server) take(ctx context.Context, l *line) (*net.UnixListener, error) {
	timeout := time.Duration(l.order.TimeoutMillis) * time.Millisecond
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the guest's init did not answer within %v", timeout))
	defer cancel()
	channel, err := s.connect(ctx, l.order.Channel)
	if err != nil {
		return nil, err
	}
	listener, err := lendAt(l.order.Socket)
	if err != nil {
		return nil, errors.Join(err, channel.Close())
	}
	l.session, l.guest = channel, guest.New(channel.Open)
	return listener, nil
}

func lendAt(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("making way for the guest's socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("making the guest's socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("making the guest's socket root's own: %w", err), listener.Close())
	}
	return listener, nil
}

// lend gives every connection a stream of its own.
func (l *line) lend(ctx context.Context, listener *net.UnixListener) {
	var group sync.WaitGroup
	defer group.Wait()
	slots := make(chan struct{}, lentStreams)
	for {
		conn, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "lending the guest: %v\n", err)
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
			decline(conn, fmt.Errorf("%w: %d are lent", guest.ErrBusy, lentStreams))
		}
	}
}

// splice joins a connection and a new stream until one of them ends: the protocol has
// no use for halves of either.
func (l *line) splice(ctx context.Context, conn *net.UnixConn) {
	opening, cancel := context.WithTimeoutCause(ctx, openTimeout, fmt.Errorf("the guest gave no stream within %v", openTimeout))
	stream, err := l.session.Open(opening)
	cancel()
	if err != nil {
		decline(conn, err)
		return
	}
	hangUp := sync.OnceFunc(func() { _ = errors.Join(conn.Close(), stream.Close()) })
	stop := context.AfterFunc(ctx, hangUp)
	defer stop()
	var group sync.WaitGroup
	group.Go(func() {
		defer hangUp()
		pour(stream, conn)
	})
	pour(conn, stream)
	hangUp()
	group.Wait()
}

// pour copies with a buffer that is small, because there may be hundreds.
func pour(to io.Writer, from io.Reader) {
	// The interfaces hide methods by which io would choose a way, and a buffer, of
	// its own. An error is the end of one of the two, which is all that it says.
	_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 8<<10))
}

// decline answers in the guest's place, for a stream that it never sees.
func decline(conn *net.UnixConn, err error) {
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_ = wire.WriteLine(conn, guest.Answer{Failure: guest.NewFailure(fmt.Errorf("(its supervisor) %w", err))})
	_ = conn.Close()
}
