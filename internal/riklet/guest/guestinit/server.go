package guestinit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/wire"
)

// errNoRun is returned for a run that has ended or never existed.
var errNoRun = errors.New("this process does not run")

// Server serves a Machine to one node, one session after the other.
type Server struct {
	machine Machine
	logf    func(format string, args ...any)

	mu   sync.Mutex
	runs map[uint64]*run
	last uint64
	// keeping means that containers continue when the session ends.
	keeping bool
}

// NewServer returns a server. logf writes to the machine's console.
func NewServer(m Machine, logf func(format string, args ...any)) *Server {
	return &Server{machine: m, logf: logf, runs: map[uint64]*run{}}
}

// Serve waits for a greeting and serves one session until it ends. The session's processes end
// with it, unless they are kept (guest.OpKeep).
func (s *Server) Serve(conn io.ReadWriteCloser) error {
	conn = wire.Buffered(conn)
	if err := wire.Answer(conn); err != nil {
		_ = conn.Close()
		return err
	}
	mux, err := wire.Init(conn)
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("starting a session: %w", err)
	}
	var streams sync.WaitGroup
	for {
		stream := accept(mux)
		if stream == nil {
			break
		}
		streams.Go(func() {
			defer stream.Close()
			if err := s.handle(stream); err != nil {
				s.logf("a stream ended: %v", err)
			}
		})
	}
	_ = mux.Close()
	s.killAll()
	streams.Wait()
	return nil
}

// accept waits for a stream. It returns nil when the session has ended for any reason.
func accept(mux *yamux.Session) net.Conn {
	stream, err := mux.AcceptStream()
	if err != nil {
		return nil
	}
	return wire.ReadAhead(stream)
}

func (s *Server) killAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runs {
		if !s.keepsLocked(r) {
			r.killLocked()
		}
	}
}

// handle serves one stream.
func (s *Server) handle(conn net.Conn) error {
	var r guest.Request
	if err := wire.ReadLine(conn, &r); err != nil {
		return err
	}
	switch r.Op {
	case guest.OpRun:
		return s.run(conn, r)
	case guest.OpStdin:
		return s.stdin(conn, r)
	case guest.OpDial:
		return s.dial(conn, r)
	case guest.OpShutdown:
		return s.shutdown(conn)
	}
	answer, err := s.once(conn, r)
	if err != nil {
		answer = guest.Answer{Failure: guest.NewFailure(err)}
	}
	return wire.WriteLine(conn, answer)
}

// once serves the operations that end with their answer.
func (s *Server) once(conn net.Conn, r guest.Request) (guest.Answer, error) {
	switch r.Op {
	case guest.OpConfigure:
		return guest.Answer{}, s.configure(conn, r.Config)
	case guest.OpFiles:
		return guest.Answer{}, s.files(conn, r.Volume)
	case guest.OpThaw:
		if r.Identity == nil {
			return guest.Answer{}, errors.New("no identity in the request")
		}
		return guest.Answer{}, s.thaw(*r.Identity)
	case guest.OpKeep:
		s.keep()
		return guest.Answer{}, nil
	case guest.OpHealth:
		return guest.Answer{}, nil
	case guest.OpUsage:
		u, err := s.machine.Usage()
		return guest.Answer{Usage: &u}, err
	case guest.OpSignal:
		return guest.Answer{}, s.with(r.Run, func(c *Child) error { return c.Signal(r.Signal) })
	case guest.OpResize:
		return guest.Answer{}, s.with(r.Run, func(c *Child) error { return resize(c.TTY, r.Size) })
	}
	return guest.Answer{}, fmt.Errorf("this guest init does not support the operation %q", r.Op)
}

// with calls f for a running process. It is not an error if the process has ended.
func (s *Server) with(id uint64, f func(*Child) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.runs[id]
	if ok && r.ended || !ok && id != 0 && id <= s.last {
		return nil
	}
	if !ok {
		return errNoRun
	}
	return f(r.child)
}

func (s *Server) configure(conn net.Conn, c *guest.Config) error {
	if c == nil {
		return errors.New("no configuration in the request")
	}
	if err := receiveFiles(conn, c.Volumes); err != nil {
		return err
	}
	return s.machine.Configure(*c)
}

func (s *Server) files(conn net.Conn, v *guest.Volume) error {
	if v == nil {
		return errors.New("no volume in the request")
	}
	volumes := []guest.Volume{*v}
	if err := receiveFiles(conn, volumes); err != nil {
		return err
	}
	return s.machine.Files(volumes[0])
}

// receiveFiles reads the files of volumes from frames.
func receiveFiles(conn io.Reader, volumes []guest.Volume) error {
	frames := wire.NewReader(conn)
	var file *guest.File
	for {
		kind, _, err := frames.Next()
		if err != nil {
			return fmt.Errorf("reading the files of a volume: %w", err)
		}
		switch {
		case kind == wire.End:
			return nil
		case kind == wire.File:
			if file, err = beginFile(frames, volumes); err != nil {
				return err
			}
		case kind == wire.Data && file != nil:
			content, err := io.ReadAll(frames)
			if err != nil {
				return fmt.Errorf("reading %s: %w", file.Path, err)
			}
			file.Data = append(file.Data, content...)
		default:
			return fmt.Errorf("%w: a frame of kind %d among files", wire.ErrProtocol, kind)
		}
	}
}

func beginFile(frame *wire.Reader, volumes []guest.Volume) (*guest.File, error) {
	var h guest.FileHeader
	if err := frame.JSON(&h); err != nil {
		return nil, err
	}
	for i := range volumes {
		if v := &volumes[i]; v.Name == h.Volume {
			v.Files = append(v.Files, guest.File{Path: h.Path, Mode: h.Mode})
			return &v.Files[len(v.Files)-1], nil
		}
	}
	return nil, fmt.Errorf("a file for the volume %q, which the request does not have", h.Volume)
}

// dial connects a stream to a connection in the guest.
func (s *Server) dial(conn net.Conn, r guest.Request) error {
	ctx, cancel := dialContext()
	defer cancel()
	target, err := s.machine.Dial(ctx, r.Port)
	if err != nil {
		return wire.WriteLine(conn, guest.Answer{Failure: guest.NewFailure(err)})
	}
	defer target.Close()
	if err := wire.WriteLine(conn, guest.Answer{}); err != nil {
		return err
	}
	framed := guest.NewFramed(conn)
	var both sync.WaitGroup
	both.Go(func() {
		if _, err := io.Copy(target, framed); err != nil {
			_ = target.Close() // the node is gone, so end the other direction too
		} else if half, ok := target.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	})
	both.Go(func() {
		if _, err := io.Copy(struct{ io.Writer }{framed}, target); err == nil {
			_ = framed.CloseWrite()
		}
		// After an error, send nothing: the node sees the end of the stream.
	})
	both.Wait()
	return nil
}

// exitsTimeout is how long a shutdown waits until the exits of processes are reported.
const exitsTimeout = 2 * time.Second

// shutdown answers when all data is written. It then powers off even after an error.
func (s *Server) shutdown(conn net.Conn) error {
	err := s.Stop()
	answer := guest.Answer{}
	if err != nil {
		answer.Failure = guest.NewFailure(err)
	}
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		_ = wire.WriteLine(conn, answer)
		// The node closes the stream when it has read the answer.
		var one [1]byte
		_, _ = conn.Read(one[:])
	}()
	select {
	case <-reported:
	case <-time.After(exitsTimeout):
	}
	s.machine.PowerOff()
	return err
}

// Stop kills every process, waits until the exits are reported, and writes the disks.
func (s *Server) Stop() error {
	s.keepNothing()
	s.killAll()
	deadline := time.Now().Add(exitsTimeout)
	for time.Now().Before(deadline) && s.running() > 0 {
		time.Sleep(time.Millisecond)
	}
	return s.machine.Stop()
}

func (s *Server) running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs)
}
