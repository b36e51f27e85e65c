// Package session carries logs, commands and ports of instances over the single stream between
// the node and its controller.
//
// Each session may send as much data as its peer has granted credit for. Thus a slow reader
// delays only its own session, and neither side buffers more than [Window] for one session.
package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/rpc/nodev1"
)

const (
	// Window is the initial credit of each side of a session. The number is part of the protocol.
	Window = 256 << 10
	// piece is the maximum data in one message. It is small enough that sessions take turns, and
	// large enough that the framing costs little.
	piece = 32 << 10
	// maxSessions bounds the number of sessions of one connection.
	maxSessions = 256
)

// errOverrun ends a session whose peer exceeds its credit.
var errOverrun = errors.New("more was sent than there was credit for")

// Resolve returns the driver of an instance, and the name of its first container if that is
// known.
type Resolve func(uid string) (driver instance.Driver, container string, ok bool)

// Config configures a [Mux].
type Config struct {
	Resolve Resolve
	// Send sends a message on the stream. It may block, and may be called from any goroutine.
	Send   func(*nodev1.StreamData) error
	Logger *slog.Logger
}

// Mux manages the sessions of one connection.
type Mux struct {
	cfg    Config
	ctx    context.Context // ends with the connection; only passed on
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu       sync.Mutex
	sessions map[int64]*session
	closed   bool
}

// New returns a mux whose sessions end with ctx.
func New(ctx context.Context, cfg Config) *Mux {
	m := &Mux{cfg: cfg, sessions: map[int64]*session{}}
	m.ctx, m.cancel = context.WithCancel(ctx)
	return m
}

// session is one log, command or port.
type session struct {
	mux    *Mux
	id     int64
	cancel context.CancelCauseFunc
	in     *inflow  // data from the controller
	out    *outflow // the credit for data to the controller
	resize chan instance.Size
}

// Open starts a session and returns at once.
func (m *Mux) Open(open *nodev1.OpenStream) {
	ctx, cancel := context.WithCancelCause(m.ctx)
	s := &session{mux: m, id: open.GetStream(), cancel: cancel, resize: make(chan instance.Size, 1)}
	s.in = newInflow(func(n int64) { s.sendOr(&nodev1.StreamData{Stream: s.id, Credit: n}) })
	s.out = newOutflow()
	problem, duplicate := m.add(s)
	if duplicate {
		// An answer would end the session that has the ID.
		cancel(nil)
		m.cfg.Logger.Warn("a session with the id of another was not opened", "stream", s.id)
		return
	}
	if problem != "" {
		cancel(nil)
		m.group.Go(func() { s.sendOr(&nodev1.StreamData{Stream: s.id, Closed: true, Error: problem}) })
		return
	}
	m.group.Go(func() {
		defer cancel(nil)
		code, err := s.serve(ctx, open)
		if errors.Is(context.Cause(ctx), errOverrun) {
			err = errOverrun
		}
		m.remove(s)
		last := &nodev1.StreamData{Stream: s.id, Closed: true, ExitCode: int32(code)}
		if err != nil {
			last.Error, last.Problem = err.Error(), problemOf(err)
		}
		s.sendOr(last)
	})
}

// add adds a session, or returns why it cannot. It does not affect other sessions.
func (m *Mux) add(s *session) (problem string, duplicate bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return "the connection is being closed", false
	case m.sessions[s.id] != nil:
		return "", true
	case len(m.sessions) >= maxSessions:
		return fmt.Sprintf("the node has %d sessions already", maxSessions), false
	}
	m.sessions[s.id] = s
	return "", false
}

func (m *Mux) remove(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, s.id)
}

// Data passes a piece of data to its session without blocking. It ignores data for a session that
// has ended, because both sides may end a session at the same time.
func (m *Mux) Data(d *nodev1.StreamData) {
	m.mu.Lock()
	s := m.sessions[d.GetStream()]
	m.mu.Unlock()
	if s == nil {
		return
	}
	if d.GetCredit() > 0 {
		s.out.grant(d.GetCredit())
	}
	if d.GetWidth() != 0 {
		s.resized(instance.Size{Width: uint16(min(d.GetWidth(), 1<<16-1)), Height: uint16(min(d.GetHeight(), 1<<16-1))})
	}
	if len(d.GetData()) > 0 && !s.in.put(d.GetData()) {
		m.cfg.Logger.Warn("a session was sent more than it gave credit for", "stream", s.id)
		s.in.end(errOverrun)
		s.cancel(errOverrun)
	}
	if d.GetEndOfInput() {
		s.in.end(io.EOF)
	}
	if d.GetClosed() {
		s.in.end(io.EOF)
		s.cancel(nil)
	}
}

// resized keeps only the latest size that was not read yet.
func (s *session) resized(size instance.Size) {
	for {
		select {
		case s.resize <- size:
			return
		default:
		}
		select {
		case <-s.resize:
		default:
		}
	}
}

// Close ends all sessions and returns when they have ended.
func (m *Mux) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	m.group.Wait()
}

// sendOr sends a message, and ends the session if the connection has failed.
func (s *session) sendOr(d *nodev1.StreamData) {
	if err := s.mux.cfg.Send(d); err != nil {
		s.cancel(err)
	}
}

// serve runs the session to its end.
func (s *session) serve(ctx context.Context, open *nodev1.OpenStream) (int, error) {
	// A reader of input must not outlive the session.
	defer s.in.end(io.ErrClosedPipe)
	driver, first, ok := s.mux.cfg.Resolve(open.GetUid())
	if !ok {
		return 0, fmt.Errorf("instance %s: %w", open.GetUid(), instance.ErrUnknown)
	}
	container := open.GetContainer()
	if container == "" {
		container = first
	}
	switch {
	case open.GetLog() != nil:
		return 0, s.log(ctx, driver, open.GetUid(), container, open.GetLog())
	case open.GetExec() != nil:
		return s.exec(ctx, driver, open.GetUid(), container, open.GetExec())
	case open.GetHold() != nil:
		return 0, hold(ctx, driver, open.GetUid(), open.GetHold())
	case open.GetPort() != nil:
		return 0, s.port(ctx, driver, open.GetUid(), open.GetPort().GetPort())
	default:
		return 0, errors.New("this riklet does not know the kind of session")
	}
}

// hold suspends or resumes an instance.
func hold(ctx context.Context, driver instance.Driver, uid string, h *nodev1.HoldSession) error {
	switch {
	case !h.GetSuspended():
		return driver.Resume(ctx, uid)
	case h.GetToDisk():
		return driver.Suspend(ctx, uid, instance.OnDisk)
	default:
		return driver.Suspend(ctx, uid, instance.InMemory)
	}
}

// problemOf returns the kind of an error in the protocol.
func problemOf(err error) nodev1.Problem {
	switch {
	case errors.Is(err, instance.ErrUnknown):
		return nodev1.Problem_PROBLEM_UNKNOWN_INSTANCE
	case errors.Is(err, instance.ErrNotRunning):
		return nodev1.Problem_PROBLEM_NOT_RUNNING
	case errors.Is(err, instance.ErrLost):
		return nodev1.Problem_PROBLEM_LOST
	case errors.Is(err, errors.ErrUnsupported):
		return nodev1.Problem_PROBLEM_UNSUPPORTED
	default:
		return nodev1.Problem_PROBLEM_UNSPECIFIED
	}
}

func (s *session) log(ctx context.Context, driver instance.Driver, uid, container string, log *nodev1.LogSession) error {
	options := instance.LogOptions{Follow: log.GetFollow(), Previous: log.GetPrevious(), Timestamps: log.GetTimestamps(), TailLines: log.TailLines}
	if log.SinceSeconds != nil {
		options.Since = time.Now().Add(-time.Duration(log.GetSinceSeconds()) * time.Second)
	}
	return driver.Logs(ctx, uid, container, options, s.writer(ctx, nodev1.Channel_CHANNEL_STDOUT))
}

func (s *session) exec(ctx context.Context, driver instance.Driver, uid, container string, exec *nodev1.ExecSession) (int, error) {
	if exec.GetTty() && exec.GetWidth() != 0 {
		s.resized(instance.Size{Width: uint16(min(exec.GetWidth(), 1<<16-1)), Height: uint16(min(exec.GetHeight(), 1<<16-1))})
	}
	options := instance.ExecOptions{
		Command: exec.GetCommand(), TTY: exec.GetTty(), Resize: s.resize,
		Stdout: s.writer(ctx, nodev1.Channel_CHANNEL_STDOUT), Stderr: s.writer(ctx, nodev1.Channel_CHANNEL_STDERR),
	}
	if exec.GetStdin() {
		options.Stdin = s.in
	}
	// A driver that waits for its copy of stdin must see the end when the session is canceled.
	defer context.AfterFunc(ctx, func() { s.in.end(io.EOF) })()
	return driver.Exec(ctx, uid, container, options)
}

// port copies data in both directions until both sides have finished, or the peer closes.
func (s *session) port(ctx context.Context, driver instance.Driver, uid string, port int32) error {
	conn, err := driver.Dial(ctx, uid, port)
	if err != nil {
		return err
	}
	// Closing the connection ends both copies.
	defer context.AfterFunc(ctx, func() {
		s.in.end(io.EOF)
		_ = conn.Close()
	})()
	var inward sync.WaitGroup
	var refused error // the error of writing the peer's data to the instance
	inward.Go(func() {
		_, refused = io.Copy(conn, s.in)
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	})
	_, err = io.Copy(s.writer(ctx, nodev1.Channel_CHANNEL_STDOUT), conn)
	if err == nil && ctx.Err() == nil {
		// The instance may still read: each direction of a connection ends separately.
		s.sendOr(&nodev1.StreamData{Stream: s.id, EndOfInput: true})
		inward.Wait()
	}
	ended := ctx.Err() != nil
	s.in.end(io.EOF)
	_ = conn.Close()
	inward.Wait()
	switch {
	case ended:
		return nil
	case err != nil:
		return err
	}
	return refused
}

// writer returns a writer that sends on a channel, within the credit.
func (s *session) writer(ctx context.Context, channel nodev1.Channel) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		for done := 0; done < len(p); {
			n, err := s.out.take(ctx, min(len(p)-done, piece))
			if err != nil {
				return done, err
			}
			// The stream may keep the message; the writer reuses its buffer.
			data := append([]byte(nil), p[done:done+n]...)
			if err := s.mux.cfg.Send(&nodev1.StreamData{Stream: s.id, Channel: channel, Data: data}); err != nil {
				return done, fmt.Errorf("sending to the controller: %w", err)
			}
			done += n
		}
		return len(p), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
