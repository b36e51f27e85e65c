// Package session serves logs, commands and ports of instances to the controller, orders to suspend
// and resume them, and requests about the node's images.
//
// The controller announces a session on the node's connection, and [Sessions] opens a stream for
// it. Flow control is that of the stream. A user who does not read stops the writers of one
// session. Neither side buffers more than [nodev1.Window] and maxInput for it.
package session

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Resolve returns the driver of an instance, and the name of its first container if that is
// known.
type Resolve func(uid string) (driver instance.Driver, container string, ok bool)

// Images serves requests about the node's images. *imagesession.Service implements it.
type Images interface {
	// Serve reads an archive from in, which it closes, and writes the answer to out. An error with a
	// method Problem has a kind in the protocol.
	Serve(ctx context.Context, request *nodev1.ImagesSession, in io.ReadCloser, out io.Writer) error
}

// Config configures [Sessions]. All fields except Images are required.
type Config struct {
	// Node is the name of the node.
	Node    string
	Resolve Resolve
	// Images is nil for a node without images.
	Images Images
	// Client opens the streams.
	Client nodev1.NodeClient
	Logger *slog.Logger
}

// Sessions are the sessions of one connection.
type Sessions struct {
	cfg    Config
	ctx    context.Context // ends with the connection; only passed on
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu     sync.Mutex
	open   map[int64]context.CancelFunc
	closed bool
}

// New returns sessions that end with ctx.
func New(ctx context.Context, cfg Config) *Sessions {
	s := &Sessions{cfg: cfg, open: map[int64]context.CancelFunc{}}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

// Open opens the stream of an announced session and serves it. It returns at once.
func (s *Sessions) Open(announced *nodev1.OpenSession) {
	ctx, cancel := context.WithCancel(s.ctx)
	id := announced.GetSession()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		cancel()
	case s.open[id] != nil:
		cancel()
		s.cfg.Logger.Warn("a session with the number of another was not opened", "session", id)
	case len(s.open) >= nodev1.MaxSessions:
		s.group.Go(func() {
			defer cancel()
			s.report(serve(ctx, s.cfg, announced, refuse(fmt.Errorf("the node has %d sessions already", nodev1.MaxSessions))))
		})
	default:
		s.open[id] = cancel
		s.group.Go(func() {
			defer s.remove(id)
			s.report(serve(ctx, s.cfg, announced, perform))
		})
	}
}

func (s *Sessions) report(err error) {
	if err != nil && s.ctx.Err() == nil {
		s.cfg.Logger.Info("session was not opened", "err", err)
	}
}

func (s *Sessions) remove(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[id]()
	delete(s.open, id)
}

// End ends a session whose user is gone. It returns at once, and does nothing if the session has
// ended, because both sides may end a session at the same time.
func (s *Sessions) End(order *nodev1.CloseSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.open[order.GetSession()]; cancel != nil {
		cancel()
	}
}

// Close ends all sessions and returns when they have ended.
func (s *Sessions) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.group.Wait()
}
