package guest

import (
	"context"
	"errors"
	"fmt"
	"io"

	"rik.dev/rik/internal/riklet/guest/wire"
)

// running is a process in a guest. Its stream lives as long as the process.
type running struct {
	client *client
	answer Answer
	done   chan struct{}
	// exit and err are written before done is closed.
	exit Exit
	err  error
}

func (c *client) Run(ctx context.Context, p Process, s Streams) (Running, error) {
	conn, answer, err := c.call(ctx, Request{Op: OpRun, Process: &p, Stdin: s.Stdin != nil}, nil)
	if err != nil {
		return nil, err
	}
	r := &running{client: c, answer: answer, done: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	if s.Stdin != nil {
		go r.sendStdin(ctx, s.Stdin)
	}
	go func() {
		defer close(r.done)
		r.exit, r.err = drain(conn, s)
		if !stop() {
			// The context ended first. If an exit arrived, it is that of the kill.
			r.exit, r.err = Exit{}, context.Cause(ctx)
		}
		_ = conn.Close()
	}()
	return r, nil
}

// sendStdin sends standard input until it ends, on a separate stream, so that input that the
// process does not read delays nothing else. If a Read of stdin blocks forever, this goroutine
// stays; only the caller can end that.
func (r *running) sendStdin(ctx context.Context, stdin io.Reader) {
	conn, _, err := r.client.call(ctx, Request{Op: OpStdin, Run: r.answer.Run}, nil)
	if err != nil {
		return // the process or the guest has ended; Wait reports which
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	over := make(chan struct{})
	go func() {
		select {
		case <-r.done:
			_ = conn.Close()
		case <-over:
		}
	}()
	input := NewFramed(conn)
	// An error means the end of the process or of the input. Wait must not report either.
	_, _ = io.CopyBuffer(struct{ io.Writer }{input}, struct{ io.Reader }{stdin}, make([]byte, wire.Chunk))
	_ = input.CloseWrite()
	// The init ends the stream when it has received all input.
	_, _ = io.Copy(io.Discard, conn)
	close(over)
	stop()
	_ = conn.Close()
}

// drain writes the output until the exit. After a Writer has failed, its output is discarded and
// the process continues.
func drain(conn io.Reader, s Streams) (Exit, error) {
	frames := wire.NewReader(conn)
	stdout, stderr := writerOrNothing(s.Stdout), writerOrNothing(s.Stderr)
	buf := make([]byte, wire.Chunk)
	for {
		kind, _, err := frames.Next()
		if err != nil {
			return Exit{}, lost(err)
		}
		switch kind {
		case wire.Stdout:
			stdout, err = copyFrame(stdout, frames, buf)
		case wire.Stderr:
			stderr, err = copyFrame(stderr, frames, buf)
		case wire.Exit:
			var e Exit
			if err := frames.JSON(&e); err != nil {
				return Exit{}, lost(err)
			}
			if e.Code < 0 || e.Code > 255 {
				return Exit{}, fmt.Errorf("%w: exit code %d", ErrProtocol, e.Code)
			}
			return e, nil
		default:
			err = fmt.Errorf("%w: a frame of kind %d from a process", ErrProtocol, kind)
		}
		if err != nil {
			return Exit{}, lost(err)
		}
	}
}

func writerOrNothing(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// copyFrame copies a frame and returns the writer for the following frames.
func copyFrame(w io.Writer, frame io.Reader, buf []byte) (io.Writer, error) {
	for {
		n, err := frame.Read(buf)
		if n > 0 {
			if _, failed := w.Write(buf[:n]); failed != nil {
				w = io.Discard
			}
		}
		if err == io.EOF {
			return w, nil
		}
		if err != nil {
			return w, err
		}
	}
}

func lost(err error) error {
	if errors.Is(err, ErrProtocol) {
		return err
	}
	return fmt.Errorf("the guest has ended, or the stream of its process: %w", err)
}

func (r *running) PID() int { return r.answer.PID }

func (r *running) Signal(ctx context.Context, signal int) error {
	_, err := r.ask(ctx, Request{Op: OpSignal, Run: r.answer.Run, Signal: signal})
	return err
}

func (r *running) Resize(ctx context.Context, s Size) error {
	_, err := r.ask(ctx, Request{Op: OpResize, Run: r.answer.Run, Size: s})
	return err
}

// ask sends a request about a process. It is not an error if the process has ended.
func (r *running) ask(ctx context.Context, request Request) (Answer, error) {
	select {
	case <-r.done:
		return Answer{}, nil
	default:
		return r.client.ask(ctx, request, nil)
	}
}

func (r *running) Wait() (Exit, error) {
	<-r.done
	return r.exit, r.err
}
