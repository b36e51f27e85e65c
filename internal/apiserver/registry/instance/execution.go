package instance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"rik.dev/rik/internal/rpc/nodev1"
)

// execution connects a client's streams to a session.
type execution struct{ session Session }

// exitError is the result of a command that ended with an exit code other than 0, in the form
// of the streaming library.
type exitError struct{ code int }

func (e exitError) Error() string   { return fmt.Sprintf("exit status %d", e.code) }
func (e exitError) String() string  { return e.Error() }
func (e exitError) Exited() bool    { return true }
func (e exitError) ExitStatus() int { return e.code }

// ExecInContainer serves the session to its end and returns the result of the command. The
// reading of input may outlive it and ends only with the client's connection, which the caller
// closes.
func (x *execution) ExecInContainer(ctx context.Context, _, _, _ string, _ []string, in io.Reader, out, errOut io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, x.session.Close)
	defer stop()
	if in != nil {
		go x.input(in)
	}
	if resize != nil {
		go x.resize(ctx, resize)
	}
	return x.output(out, errOut)
}

// input sends the client's input, no faster than the node reads it.
func (x *execution) input(in io.Reader) {
	buffer := make([]byte, nodev1.Piece)
	for {
		n, err := in.Read(buffer)
		if n > 0 && x.session.Send(nodev1.NewInput(bytes.Clone(buffer[:n]))) != nil {
			return // the session has ended
		}
		if err != nil {
			_ = x.session.Send(nodev1.NewEndOfInput())
			return
		}
	}
}

func (x *execution) resize(ctx context.Context, sizes <-chan remotecommand.TerminalSize) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok {
				return
			}
			if size.Width == 0 || size.Height == 0 {
				continue
			}
			if x.session.Send(nodev1.NewSize(uint32(size.Width), uint32(size.Height))) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// output writes the command's output until the session ends.
func (x *execution) output(out, errOut io.Writer) error {
	for {
		message, err := x.session.Recv()
		if data := message.GetOutput().GetData(); len(data) > 0 {
			to := out
			if message.GetOutput().GetChannel() == nodev1.Channel_CHANNEL_STDERR {
				to = errOut
			}
			if to != nil {
				if _, err := to.Write(data); err != nil {
					return errors.New("the client disconnected")
				}
			}
		}
		if err == nil && message.GetEnd() == nil {
			continue
		}
		if err := result(message.GetEnd(), err); err != nil {
			return err
		}
		if code := int(message.GetEnd().GetExitCode()); code != 0 {
			return exitError{code}
		}
		return nil
	}
}
