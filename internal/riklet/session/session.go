package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/rpc/nodev1"
)

// session is one log, command or port, or one request about images, with its stream.
type session struct {
	stream nodev1.Node_SessionClient
	in     *input // data from the user
	resize chan instance.Size

	sending sync.Mutex // gRPC allows only one sender at a time
}

// action does what an announcement asks for. It returns the exit code of a command.
type action func(ctx context.Context, s *session, cfg Config, announced *nodev1.OpenSession) (int, error)

// refuse returns an action that does nothing but fail.
func refuse(why error) action {
	return func(context.Context, *session, Config, *nodev1.OpenSession) (int, error) { return 0, why }
}

// serve opens the stream of a session, performs its action, and returns when the controller has
// read everything or the user is gone. It returns an error if the controller does not accept the
// stream; nothing was done then.
func serve(ctx context.Context, cfg Config, announced *nodev1.OpenSession, do action) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx, cfg, announced)
	if err != nil {
		return fmt.Errorf("opening session %d: %w", announced.GetSession(), err)
	}
	s := &session{stream: stream, in: newInput(), resize: make(chan instance.Size, 1)}
	var receiving sync.WaitGroup
	receiving.Go(func() {
		defer cancel() // the controller has ended the stream
		s.receive()
	})
	code, err := do(ctx, s, cfg, announced)
	s.in.end(io.ErrClosedPipe) // else a receiver with much input would wait for its reader
	end := &nodev1.SessionEnd{ExitCode: int32(code)}
	if err != nil {
		end.Error, end.Problem = err.Error(), problemOf(err)
	}
	// If sending fails, the stream has ended.
	if s.send(nodev1.NewEnd(end)) == nil {
		_ = stream.CloseSend()
	}
	receiving.Wait()
	return nil
}

// open opens the stream and waits until the controller has accepted it. The user of a session that
// is not accepted has received an error, so the node must not act.
func open(ctx context.Context, cfg Config, announced *nodev1.OpenSession) (nodev1.Node_SessionClient, error) {
	// gRPC would keep what is sent for a second attempt.
	stream, err := cfg.Client.Session(ctx, grpc.MaxCallRecvMsgSize(2*nodev1.MaxPiece), grpc.MaxRetryRPCBufferSize(0))
	if err != nil {
		return nil, err
	}
	start := &nodev1.SessionStart{NodeName: cfg.Node, Session: announced.GetSession(), Secret: announced.GetSecret()}
	if err := stream.Send(&nodev1.SessionOutput{Message: &nodev1.SessionOutput_Start{Start: start}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	// Without headers, Recv has the controller's reason.
	if header, err := stream.Header(); err != nil || header == nil {
		_, err = stream.Recv()
		return nil, err
	}
	return stream, nil
}

// receive passes on what the user sends, until the stream ends. A driver that waits for its copy
// of stdin then sees the end.
func (s *session) receive() {
	defer s.in.end(io.EOF)
	for {
		message, err := s.stream.Recv()
		if err != nil {
			return
		}
		switch m := message.GetMessage().(type) {
		case *nodev1.SessionInput_Data:
			s.in.put(m.Data)
		case *nodev1.SessionInput_EndOfInput:
			s.in.end(io.EOF)
		case *nodev1.SessionInput_Size:
			s.resized(m.Size.GetWidth(), m.Size.GetHeight())
		}
	}
}

// resized keeps only the latest size that was not read yet.
func (s *session) resized(width, height uint32) {
	if width == 0 {
		return
	}
	size := instance.Size{Width: uint16(min(width, 1<<16-1)), Height: uint16(min(height, 1<<16-1))}
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

// send sends a message. It blocks while the user does not read.
func (s *session) send(message *nodev1.SessionOutput) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.stream.Send(message)
}

// perform performs what the announcement asks for.
func perform(ctx context.Context, s *session, cfg Config, announced *nodev1.OpenSession) (int, error) {
	if request := announced.GetImages(); request != nil {
		return 0, s.images(ctx, cfg, request)
	}
	uid := announced.GetUid()
	driver, first, ok := cfg.Resolve(uid)
	if !ok {
		return 0, fmt.Errorf("instance %s: %w", uid, instance.ErrUnknown)
	}
	container := announced.GetContainer()
	if container == "" {
		container = first
	}
	switch kind := announced.GetKind().(type) {
	case *nodev1.OpenSession_Log:
		return 0, s.log(ctx, driver, uid, container, kind.Log)
	case *nodev1.OpenSession_Exec:
		return s.exec(ctx, driver, uid, container, kind.Exec)
	case *nodev1.OpenSession_Hold:
		return 0, hold(ctx, driver, uid, kind.Hold)
	case *nodev1.OpenSession_Port:
		return 0, s.port(ctx, driver, uid, kind.Port.GetPort())
	default:
		return 0, errors.New("this riklet does not know the kind of session")
	}
}

// images serves a request about the node's images.
func (s *session) images(ctx context.Context, cfg Config, request *nodev1.ImagesSession) error {
	if cfg.Images == nil {
		return fmt.Errorf("this node has no images: %w", errors.ErrUnsupported)
	}
	defer context.AfterFunc(ctx, func() { s.in.end(io.ErrClosedPipe) })()
	return cfg.Images.Serve(ctx, request, closingInput{s.in}, s.writer(nodev1.Channel_CHANNEL_STDOUT))
}

// closingInput is an input whose reader can end it.
type closingInput struct{ *input }

// Close makes a read that blocks, and all later reads, fail.
func (c closingInput) Close() error {
	c.end(io.ErrClosedPipe)
	return nil
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
	var classified interface{ Problem() nodev1.Problem }
	switch {
	case errors.As(err, &classified):
		return classified.Problem()
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
	return driver.Logs(ctx, uid, container, options, s.writer(nodev1.Channel_CHANNEL_STDOUT))
}

func (s *session) exec(ctx context.Context, driver instance.Driver, uid, container string, exec *nodev1.ExecSession) (int, error) {
	if exec.GetTty() {
		s.resized(exec.GetWidth(), exec.GetHeight())
	}
	options := instance.ExecOptions{
		Command: exec.GetCommand(), TTY: exec.GetTty(), Resize: s.resize,
		Stdout: s.writer(nodev1.Channel_CHANNEL_STDOUT), Stderr: s.writer(nodev1.Channel_CHANNEL_STDERR),
	}
	if exec.GetStdin() {
		options.Stdin = s.in
	}
	// A driver that waits for its copy of stdin must see the end when the session is canceled.
	defer context.AfterFunc(ctx, func() { s.in.end(io.EOF) })()
	return driver.Exec(ctx, uid, container, options)
}

// port copies data in both directions until both sides have finished, or the user is gone.
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
	var refused error // the error of writing the user's data to the instance
	inward.Go(func() {
		_, refused = io.Copy(conn, s.in)
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	})
	_, err = io.Copy(s.writer(nodev1.Channel_CHANNEL_STDOUT), conn)
	if err == nil && ctx.Err() == nil {
		// The instance may still read: each direction of a connection ends separately.
		_ = s.send(nodev1.NewEndOfOutput())
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

// writer returns a writer that sends on a channel. It blocks while the user does not read.
func (s *session) writer(channel nodev1.Channel) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		for done := 0; done < len(p); {
			n := min(len(p)-done, nodev1.Piece)
			// The stream may keep the message; the writer reuses its buffer.
			if err := s.send(nodev1.NewOutput(channel, bytes.Clone(p[done:done+n]))); err != nil {
				return done, fmt.Errorf("sending to the controller: %w", err)
			}
			done += n
		}
		return len(p), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
