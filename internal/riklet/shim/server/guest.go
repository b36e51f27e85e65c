package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/logfile"
)

const (
	// guestStartTimeout is the timeout for a guest that neither starts a process nor refuses to.
	// Building a root under software emulation takes seconds.
	guestStartTimeout = 2 * time.Minute
	// guestSignalTimeout is the timeout for a guest that does not accept a signal.
	guestSignalTimeout = 30 * time.Second
	// codeLost is the exit code of a process that ended with its microVM, the same as if killed.
	codeLost = 128 + int(syscall.SIGKILL)
)

// runGuest runs a process in the linked guest, and writes its output to the log.
func (s *Server) runGuest(ctx context.Context, o shim.Start) (*live, error) {
	s.mu.Lock()
	l := s.line
	s.mu.Unlock()
	if l == nil || !l.open() {
		return nil, fmt.Errorf("starting %q in the microVM: the supervisor has no channel to its guest; link the guest first", o.Container)
	}
	out, err := newLog(o)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	running, err := l.runIn(ctx, *o.Guest, out.streams(o.Guest.TTY, done))
	if err != nil {
		close(done)
		return nil, errors.Join(err, out.finish(time.Now()))
	}
	return &live{
		out: out, // no PID, because its number in the guest has no meaning on the node
		wait: func() end {
			defer close(done)
			return l.endOf(running.Wait())
		},
		signal: func(sig syscall.Signal) error {
			ctx, cancel := context.WithTimeoutCause(l.ctx, guestSignalTimeout, fmt.Errorf("the guest did not answer within %v", guestSignalTimeout))
			defer cancel()
			return running.Signal(ctx, int(sig))
		},
	}, nil
}

// runIn limits the time of the start. The process lives until the channel ends.
func (l *line) runIn(start context.Context, p guest.Process, streams guest.Streams) (guest.Running, error) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	timer := time.AfterFunc(guestStartTimeout, func() {
		cancel(fmt.Errorf("the guest did not start %q within %v", p.Container, guestStartTimeout))
	})
	stopCancel := context.AfterFunc(start, func() { cancel(context.Cause(start)) })
	running, err := l.guest.Run(ctx, p, streams)
	canceledStart := !stopCancel()
	if canceledStart {
		cancel(context.Cause(start))
	}
	if err == nil && (canceledStart || !timer.Stop()) {
		_, err = running.Wait() // it was canceled
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		timer.Stop()
		cancel(nil)
		return nil, l.withChannelError(err)
	}
	return processContext{running, cancel}, nil
}

// processContext cancels the context of a process when the process has ended.
type processContext struct {
	guest.Running
	cancel context.CancelCauseFunc
}

func (l processContext) Wait() (guest.Exit, error) {
	defer l.cancel(nil)
	return l.Running.Wait()
}

func (l *line) endOf(e guest.Exit, err error) end {
	if err != nil {
		return end{code: codeLost, message: l.withChannelError(err).Error()}
	}
	return end{code: e.Code, oomKilled: e.OOMKilled}
}

// withChannelError adds the end of the channel to an error, if that is why a stream failed. The
// stream itself only ends.
func (l *line) withChannelError(err error) error {
	select {
	case <-l.session.Done():
		if !errors.Is(err, errChannelEnded) {
			return fmt.Errorf("%w (%w)", errChannelEnded, err)
		}
	default:
	}
	return err
}

// streams returns writers to the log for a process in a guest.
func (o *output) streams(tty bool, done <-chan struct{}) guest.Streams {
	s := guest.Streams{Stdout: o.sink(logfile.Stdout), Stderr: o.sink(logfile.Stderr)}
	if tty {
		// If the input ended, a shell at the terminal would exit although the user did not end
		// it.
		s.Stdin = silence(done)
	}
	return s
}

// silence is an input without data. It ends when the channel is closed.
type silence <-chan struct{}

func (s silence) Read([]byte) (int, error) {
	<-s
	return 0, io.EOF
}
