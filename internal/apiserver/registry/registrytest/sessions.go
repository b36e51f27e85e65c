package registrytest

import (
	"context"
	"io"
	"sync/atomic"

	"rik.dev/rik/internal/apiserver/registry/instance"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Node plays the far end of sessions with instances on node n1: each runs
// Script, which returns how the session ends, or nil when the client is gone.
type Node struct {
	Script func(s *FarEnd, open *nodev1.OpenStream) *nodev1.StreamData
	// Opened receives what was asked for; it must have room.
	Opened chan *nodev1.OpenStream
}

// Open implements instance.Sessions.
func (n *Node) Open(ctx context.Context, name string, open *nodev1.OpenStream) (instance.Session, error) {
	if name != "n1" {
		return nil, instance.ErrNotConnected
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &FarEnd{ctx: ctx, cancel: cancel, down: make(chan *nodev1.StreamData, 64), up: make(chan *nodev1.StreamData, 64)}
	n.Opened <- open
	go func() {
		last := n.Script(s, open)
		if last == nil {
			return
		}
		last.Closed = true
		s.Print(last)
	}()
	return s, nil
}

// FarEnd is a session in memory. down is what the node reads.
type FarEnd struct {
	ctx      context.Context
	cancel   context.CancelFunc
	down, up chan *nodev1.StreamData
	left     atomic.Bool
}

// Leave makes the client's messages fail from now on, as they do once the node
// has said its last word; what it prints is still read.
func (s *FarEnd) Leave() { s.left.Store(true) }

// Send is the client's side.
func (s *FarEnd) Send(d *nodev1.StreamData) error {
	if s.left.Load() {
		return io.ErrClosedPipe
	}
	select {
	case s.down <- d:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// Recv is the client's side.
func (s *FarEnd) Recv() (*nodev1.StreamData, error) {
	select {
	case d := <-s.up:
		return d, nil
	case <-s.ctx.Done():
		return nil, io.EOF
	}
}

// Close is the client's side.
func (s *FarEnd) Close() { s.cancel() }

// Print sends a message to the client.
func (s *FarEnd) Print(d *nodev1.StreamData) {
	select {
	case s.up <- d:
	case <-s.ctx.Done():
	}
}

// Out sends a piece of output to the client.
func (s *FarEnd) Out(text string) {
	s.Print(&nodev1.StreamData{Channel: nodev1.Channel_CHANNEL_STDOUT, Data: []byte(text)})
}

// Read is the next message from the client's side; nil once it is gone.
func (s *FarEnd) Read() *nodev1.StreamData {
	select {
	case d := <-s.down:
		return d
	case <-s.ctx.Done():
		return nil
	}
}

// Gone is closed when the client is.
func (s *FarEnd) Gone() <-chan struct{} { return s.ctx.Done() }
