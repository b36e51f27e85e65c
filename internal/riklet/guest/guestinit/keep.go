package guestinit

import (
	"net"
	"sync"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/wire"
)

// keep makes the containers continue when their session ends. After it returns, no more of their
// output is sent, so that a snapshot of the machine contains all output that the node has not
// received. thaw reverts this. Commands in a container are not kept.
func (s *Server) keep() {
	s.mu.Lock()
	s.keeping = true
	var frameWriters []*frameWriter
	for _, r := range s.runs {
		if r.container != "" {
			frameWriters = append(frameWriters, r.out)
		}
	}
	s.mu.Unlock()
	for _, o := range frameWriters {
		o.hold()
	}
}

// thaw resumes the output of kept processes, each on its present stream. A process whose stream
// ended with its session waits for guest.Process.Kept.
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

// keepNothing ends keep before a shutdown, so that kept processes are killed like the others.
func (s *Server) keepNothing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeping = false
}

func (s *Server) keepsLocked(r *run) bool { return s.keeping && r.container != "" }

// killLocked kills a process unless it has ended, and releases goroutines that wait to send its
// frames.
func (r *run) killLocked() {
	if !r.ended {
		r.child.Kill()
	}
	r.out.close()
}

// leave reports whether a process continues after the end of its stream. If not, leave kills it.
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

// kept finds a container's process that has no stream.
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

// frameWriter writes a process's frames to a stream. The stream may end, and another one may
// replace it later. Two goroutines can write at the same time, and their frames do not mix.
type frameWriter struct {
	mu      sync.Mutex
	change  sync.Cond // its L is mu
	conn    net.Conn  // nil: no stream now
	writing bool      // a frame is being written, without the lock
	held    bool      // no frame may begin
	closed  bool      // without a stream, frames are lost
}

func newFrameWriter() *frameWriter {
	o := &frameWriter{}
	o.change.L = &o.mu
	return o
}

// open sets the stream.
func (o *frameWriter) open(conn net.Conn) { o.set(func() { o.conn = conn }) }

// hold blocks new frames, and waits for the one that is being written.
func (o *frameWriter) hold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = true
	for o.writing {
		o.change.Wait()
	}
}

func (o *frameWriter) release() { o.set(func() { o.held = false }) }

// detach removes a stream that has ended.
func (o *frameWriter) detach() { o.set(func() { o.conn = nil }) }

// close stops waiting for a stream: without one, frames are lost.
func (o *frameWriter) close() { o.set(func() { o.closed = true }) }

func (o *frameWriter) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
	o.change.Broadcast()
}

func (o *frameWriter) detached() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.conn == nil && !o.closed
}

func (o *frameWriter) write(kind wire.Kind, content []byte) error {
	return o.send(func(conn net.Conn) error { return wire.WriteFrame(conn, kind, content) })
}

func (o *frameWriter) exit(e guest.Exit) error {
	return o.send(func(conn net.Conn) error { return wire.WriteFrameJSON(conn, wire.Exit, e) })
}

// send waits until a frame may be written.
func (o *frameWriter) send(say func(net.Conn) error) error {
	conn, err := o.begin()
	if err != nil {
		return err
	}
	defer o.set(func() { o.writing = false })
	return say(conn)
}

func (o *frameWriter) begin() (net.Conn, error) {
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
