package guestinit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/wire"
)

// dialTimeout is the timeout of a connection inside the guest.
const dialTimeout = 10 * time.Second

func dialContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), dialTimeout)
}

// run is a process, from its start until its exit was reported.
type run struct {
	id        uint64
	container string // empty for a command in a container
	child     *Child
	// ended is guarded by the server's lock. After the end, the PID may belong to another process.
	ended    bool
	reported chan struct{} // closed when nothing more will be reported

	out *frameWriter
}

// run starts a process, or finds a kept one, and serves its stream.
func (s *Server) run(conn net.Conn, request guest.Request) error {
	if request.Process == nil {
		return wire.WriteLine(conn, guest.Answer{Failure: guest.NewFailure(errors.New("no process in the request"))})
	}
	if request.Process.Kept {
		return s.join(conn, request.Process.Container)
	}
	child, err := s.machine.Start(*request.Process, request.Stdin)
	if err != nil {
		return wire.WriteLine(conn, guest.Answer{Failure: guest.NewFailure(err)})
	}
	r := s.add(child, *request.Process)
	if err := wire.WriteLine(conn, guest.Answer{Run: r.id, PID: child.PID}); err != nil {
		child.Kill()
	}
	r.out.open(conn)
	go func() {
		defer close(r.reported)
		defer s.remove(r)
		exit := r.copyOutput(func() { s.end(r) })
		_ = r.out.exit(exit) // without a stream there is no receiver
	}()
	s.follow(r, conn)
	return nil
}

// join connects a kept container to a stream of a new session.
func (s *Server) join(conn net.Conn, container string) error {
	r := s.kept(container)
	if r == nil {
		return wire.WriteLine(conn, guest.Answer{Failure: guest.NewFailure(fmt.Errorf("the container %q: %w", container, errNoRun))})
	}
	if err := wire.WriteLine(conn, guest.Answer{Run: r.id, PID: r.child.PID}); err != nil {
		return err
	}
	r.out.open(conn)
	s.follow(r, conn)
	return nil
}

// follow returns when the exit of a process was reported. If its stream ends before that, it
// kills the process, or leaves a kept one for another session.
func (s *Server) follow(r *run, conn net.Conn) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		// The node sends no data on this stream, so a read returns only at its end.
		var one [1]byte
		_, _ = conn.Read(one[:])
	}()
	select {
	case <-r.reported:
		return
	case <-gone:
	}
	if !s.leave(r) {
		<-r.reported
	}
}

func (s *Server) add(child *Child, p guest.Process) *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	r := &run{id: s.last, child: child, reported: make(chan struct{}), out: newFrameWriter()}
	if !p.Exec {
		r.container = p.Container
	}
	s.runs[r.id] = r
	return r
}

func (s *Server) remove(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, r.id)
}

func (s *Server) end(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.ended = true
}

// copyOutput copies the output until the process has ended, and then the data left in its streams.
func (r *run) copyOutput(ended func()) guest.Exit {
	var copiers sync.WaitGroup
	c := r.child
	for kind, from := range map[wire.Kind]*os.File{wire.Stdout: c.Stdout, wire.Stderr: c.Stderr} {
		if from != nil {
			copiers.Go(func() { r.copyFrames(kind, from) })
		}
	}
	exit := c.Wait()
	ended()
	stopReading(c.Stdout, c.Stderr)
	copiers.Wait()
	for _, f := range []*os.File{c.Stdout, c.Stderr, c.TTY} {
		if f != nil {
			_ = f.Close()
		}
	}
	if c.Stdin != nil {
		_ = c.Stdin.Close()
	}
	return exit
}

// stopReading makes the copies send the data in the streams without waiting for more, because a
// process that was left behind may hold the streams open forever. Writes to the node that have
// begun are completed, even if the node is slow.
func stopReading(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.SetReadDeadline(time.Now())
		}
	}
}

func (r *run) copyFrames(kind wire.Kind, from *os.File) {
	buf := make([]byte, wire.Chunk)
	for {
		n, err := from.Read(buf)
		if n > 0 && r.out.write(kind, buf[:n]) != nil {
			return // the stream is gone, and the process is being killed
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			r.sendRemaining(kind, from, buf)
		}
		if err != nil {
			return // the end; a terminal returns EIO
		}
	}
}

// maxRemaining is more than a pipe can hold. Later output of a process that was left behind is
// discarded.
const maxRemaining = 1 << 20

// sendRemaining sends the data that is left in a pipe, without waiting for more.
func (r *run) sendRemaining(kind wire.Kind, from *os.File, buf []byte) {
	raw, err := from.SyscallConn()
	if err != nil {
		return
	}
	for total := 0; total < maxRemaining; {
		n := 0
		_ = raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), buf) })
		if n <= 0 || r.out.write(kind, buf[:n]) != nil {
			return
		}
		total += n
	}
}

// stdin carries the input of a process from a separate stream.
func (s *Server) stdin(conn net.Conn, request guest.Request) error {
	var child *Child
	err := s.with(request.Run, func(c *Child) error {
		child = c
		return nil
	})
	if err == nil && (child == nil || child.Stdin == nil) {
		err = errNoRun
	}
	if err != nil {
		return wire.WriteLine(conn, guest.Answer{Failure: guest.NewFailure(err)})
	}
	if err := wire.WriteLine(conn, guest.Answer{}); err != nil {
		return err
	}
	// It is not an error if the process stops reading. If the node ends the stream, the input
	// ends.
	_, _ = io.Copy(struct{ io.Writer }{child.Stdin}, guest.NewFramed(conn))
	if child.TTY == nil {
		_ = child.Stdin.Close()
	}
	return nil
}

func resize(tty *os.File, size guest.Size) error {
	if tty == nil {
		return errors.New("the process has no terminal")
	}
	raw, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width})
	})
	return errors.Join(err, failed)
}
