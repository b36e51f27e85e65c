package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"rik.dev/rik/internal/rpc/nodev1"
)

// chunkBytes is the size of the largest piece of input that is sent at once.
const chunkBytes = 32 << 10

// execution connects a client's streams to a session.
type execution struct {
	session Session

	sending sync.Mutex // Send allows only one goroutine
	credit  *allowance
}

// exitError is the result of a command that ended with an exit code other than 0, in the form
// of the streaming library.
type exitError struct{ code int }

func (e exitError) Error() string   { return fmt.Sprintf("exit status %d", e.code) }
func (e exitError) String() string  { return e.Error() }
func (e exitError) Exited() bool    { return true }
func (e exitError) ExitStatus() int { return e.code }

func (x *execution) send(d *nodev1.StreamData) error {
	x.sending.Lock()
	defer x.sending.Unlock()
	return x.session.Send(d)
}

// ExecInContainer serves the session to its end and returns the result of the command. The
// reading of input may outlive it and ends only with the client's connection, which the caller
// closes.
func (x *execution) ExecInContainer(ctx context.Context, _, _, _ string, _ []string, in io.Reader, out, errOut io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, x.session.Close)
	defer stop()
	x.credit = newAllowance(InitialCredit)
	defer x.credit.close()
	if in != nil {
		go x.input(ctx, in)
	}
	if resize != nil {
		go x.resize(ctx, resize)
	}
	return x.output(out, errOut)
}

// input sends the client's input, no faster than the node accepts it.
func (x *execution) input(ctx context.Context, in io.Reader) {
	buffer := make([]byte, chunkBytes)
	for {
		n, err := in.Read(buffer)
		for sent := 0; sent < n; {
			room := x.credit.take(n - sent)
			if room == 0 || ctx.Err() != nil {
				return // the session has ended
			}
			piece := append([]byte(nil), buffer[sent:sent+room]...)
			if x.send(&nodev1.StreamData{Channel: nodev1.Channel_CHANNEL_STDIN, Data: piece}) != nil {
				return
			}
			sent += room
		}
		if err != nil {
			_ = x.send(&nodev1.StreamData{Channel: nodev1.Channel_CHANNEL_STDIN, EndOfInput: true})
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
			if x.send(&nodev1.StreamData{Width: uint32(size.Width), Height: uint32(size.Height)}) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// output writes the command's output until the session ends.
func (x *execution) output(out, errOut io.Writer) error {
	consumed := consumed{session: sender{x}}
	for {
		d, err := x.session.Recv()
		if d.GetCredit() > 0 {
			x.credit.add(d.GetCredit())
		}
		if len(d.GetData()) > 0 {
			to := out
			if d.GetChannel() == nodev1.Channel_CHANNEL_STDERR {
				to = errOut
			}
			if to != nil {
				if _, err := to.Write(d.GetData()); err != nil {
					return errors.New("the client went away")
				}
			}
			consumed.add(len(d.GetData()))
		}
		if err == nil && !d.GetClosed() {
			continue
		}
		if err := ended(d, err); err != nil {
			return err
		}
		if code := int(d.GetExitCode()); code != 0 {
			return exitError{code}
		}
		return nil
	}
}

// sender is a session that sends through the execution's Send.
type sender struct{ x *execution }

func (s sender) Send(d *nodev1.StreamData) error   { return s.x.send(d) }
func (s sender) Recv() (*nodev1.StreamData, error) { return s.x.session.Recv() }
func (s sender) Close()                            { s.x.session.Close() }

// allowance is the number of bytes that may still be sent.
type allowance struct {
	mu     sync.Mutex
	more   sync.Cond // bytes has grown, or closed is set
	bytes  int64
	closed bool
}

func newAllowance(bytes int64) *allowance {
	a := &allowance{bytes: bytes}
	a.more.L = &a.mu
	return a
}

// take waits for room and returns how many of the wanted bytes may be sent. It returns 0 once
// the allowance is closed.
func (a *allowance) take(want int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.bytes <= 0 && !a.closed {
		a.more.Wait()
	}
	if a.closed {
		return 0
	}
	n := min(int64(want), a.bytes)
	a.bytes -= n
	return int(n)
}

func (a *allowance) add(n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// A node that grants credit without end must not overflow the count.
	a.bytes = min(a.bytes+min(n, 1<<40), 1<<40)
	a.more.Broadcast()
}

func (a *allowance) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.more.Broadcast()
}
