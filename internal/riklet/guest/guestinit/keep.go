package guestinit

import (
	"net"
	"sync"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/wire"
)

// keep makes the containers outlive their session: from its return on nothing of their
// output is said any more, so that a snapshot of the machine has all that the node has
// not got. thaw takes it back. A command beside a container is not kept.
func (s *Server) keep() {
	s.mu.Lock()
	s.keeping = true
	var outlets []*outlet
	for _, r := range s.runs {
		if r.container != "" {
			outlets = append(outlets, r.out)
		}
	}
	s.mu.Unlock()
	for _, o := range outlets {
		o.hold()
	}
}

// thaw lets what was held speak again, each on the stream that it has. One whose stream
// went with another session waits for guest.Process.Kept.
func (s *Server) thaw(i guest.Identity) error {
	err := s.machine.Thaw(i)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeping = false
	for _, r := range s.runs {
		r.out.release()
	}
	return err
}

// keepNothing is for the machine's end: what was kept is killed like the rest.
func (s *Server) keepNothing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeping = false
}

func (s *Server) keepsLocked(r *run) bool { return s.keeping && r.container != "" }

// killLocked ends a process unless it has ended, and whoever waits to speak of it.
func (r *run) killLocked() {
	if !r.ended {
		r.child.Kill()
	}
	r.out.close()
}

// leave says whether a process goes on although its stream has ended; if it does not,
// it is killed.
func (s *Server) leave(r *run) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keepsLocked(r) {
		r.out.detach()
		return true
	}
	r.killLocked()
	return false
}

// kept finds a container's process that no stream belongs to.
func (s *Server) kept(container string) *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runs {
		if r.container == container && r.out.detached() {
			return r
		}
	}
	return nil
}

// outlet is where frames of a process go: a stream, for some time none, then another.
// Frames of two pumps do not mix on it.
type outlet struct {
	mu      sync.Mutex
	change  sync.Cond // its L is mu
	conn    net.Conn  // nil: none now
	writing bool      // a frame is being written, without the lock
	held    bool      // none may be begun
	closed  bool      // none is waited for
}

func newOutlet() *outlet {
	o := &outlet{}
	o.change.L = &o.mu
	return o
}

// open gives it a stream, the first or the next.
func (o *outlet) open(conn net.Conn) { o.set(func() { o.conn = conn }) }

// hold keeps back what comes from now on, and waits for what is being written.
func (o *outlet) hold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = true
	for o.writing {
		o.change.Wait()
	}
}

func (o *outlet) release() { o.set(func() { o.held = false }) }

// detach takes away a stream that has ended.
func (o *outlet) detach() { o.set(func() { o.conn = nil }) }

// close lets nobody wait any more: what comes without a stream is lost.
func (o *outlet) close() { o.set(func() { o.closed = true }) }

func (o *outlet) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
	o.change.Broadcast()
}

func (o *outlet) detached() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.conn == nil && !o.closed
}

func (o *outlet) write(kind wire.Kind, content []byte) error {
	return o.send(func(conn net.Conn) error { return wire.WriteFrame(conn, kind, content) })
}

func (o *outlet) exit(e guest.Exit) error {
	return o.send(func(conn net.Conn) error { return wire.WriteFrameJSON(conn, wire.Exit, e) })
}

// send waits until it may speak.
func (o *outlet) send(say func(net.Conn) error) error {
	conn, err := o.begin()
	if err != nil {
		return err
	}
	defer o.set(func() { o.writing = false })
	return say(conn)
}

func (o *outlet) begin() (net.Conn, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing || !o.closed && (o.held || o.conn == nil) {
		o.change.Wait()
	}
	if o.conn == nil {
		return nil, net.ErrClosed
	}
	o.writing = true
	return o.conn, nil
}
