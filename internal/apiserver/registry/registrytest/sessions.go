package registrytest

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"rik.dev/rik/internal/apiserver/registry/instance"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Node is the node's side of sessions with instances on node n1. Node "mute" opens none. Each session runs Script,
// which returns the last message of the session, or nil if the client has disconnected.
type Node struct {
	Script func(s *FarEnd, open *nodev1.OpenSession) *nodev1.SessionEnd
	// Opened receives the open requests. It must have room.
	Opened chan *nodev1.OpenSession
}

// Open implements instance.Sessions.
func (n *Node) Open(ctx context.Context, name string, open *nodev1.OpenSession) (instance.Session, error) {
	if name == "mute" {
		return nil, fmt.Errorf("%w within 10s", instance.ErrNotOpened)
	}
	if name != "n1" {
		return nil, instance.ErrNotConnected
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &FarEnd{ctx: ctx, cancel: cancel, down: make(chan *nodev1.SessionInput, 64), up: make(chan *nodev1.SessionOutput, 64)}
	n.Opened <- open
	go func() {
		last := n.Script(s, open)
		if last == nil {
			return
		}
		s.Print(nodev1.NewEnd(last))
	}()
	return s, nil
}

// FarEnd is a session in memory. The node reads from down.
type FarEnd struct {
	ctx    context.Context
	cancel context.CancelFunc
	down   chan *nodev1.SessionInput
	up     chan *nodev1.SessionOutput
	left   atomic.Bool
}

// Leave makes the client's messages fail from now on, as after the node's last message.
// Messages of the node can still be read.
func (s *FarEnd) Leave() { s.left.Store(true) }

// Send sends a message of the client.
func (s *FarEnd) Send(d *nodev1.SessionInput) error {
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

// Recv receives a message for the client.
func (s *FarEnd) Recv() (*nodev1.SessionOutput, error) {
	select {
	case d := <-s.up:
		return d, nil
	case <-s.ctx.Done():
		return nil, io.EOF
	}
}

// Close ends the session from the client's side.
func (s *FarEnd) Close() { s.cancel() }

// Print sends a message to the client.
func (s *FarEnd) Print(d *nodev1.SessionOutput) {
	select {
	case s.up <- d:
	case <-s.ctx.Done():
	}
}

// Out sends output to the client.
func (s *FarEnd) Out(text string) {
	s.Print(nodev1.NewOutput(nodev1.Channel_CHANNEL_STDOUT, []byte(text)))
}

// Read returns the client's next message, or nil once the client has disconnected.
func (s *FarEnd) Read() *nodev1.SessionInput {
	select {
	case d := <-s.down:
		return d
	case <-s.ctx.Done():
		return nil
	}
}

// Gone returns a channel that is closed when the client disconnects.
func (s *FarEnd) Gone() <-chan struct{} { return s.ctx.Done() }
