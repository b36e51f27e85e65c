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
	// guestStartTimeout bounds the wait for a guest that neither starts a process
	// nor refuses to. Making a root under software emulation takes seconds.
	guestStartTimeout = 2 * time.Minute
	// guestSignalTimeout bounds the wait for a guest that takes no signal.
	guestSignalTimeout = 30 * time.Second
	// codeLost is the exit code of what ended with its microVM: as if killed.
	codeLost = 128 + int(syscall.SIGKILL)
)

// runGuest runs a process in the guest of the line, with its output into the log.
func (s *Server) runGuest(ctx context.Context, o shim.Start) (*live, error) {
	s.mu.Lock()
	l := s.line
	s.mu.Unlock()
	if l == nil || !l.open() {
		return nil, fmt.Errorf("starting %q in the microVM: the supervisor has no channel to its guest; order a link first", o.Container)
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
		out: out, // its number in the guest is none of the node's
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

// runIn gives the start a time limit; the process lives until the channel ends.
func (l *line) runIn(start context.Context, p guest.Process, streams guest.Streams) (guest.Running, error) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	timer := time.AfterFunc(guestStartTimeout, func() {
		cancel(fmt.Errorf("the guest did not start %q within %v", p.Container, guestStartTimeout))
	})
	goesOn := context.AfterFunc(start, func() { cancel(context.Cause(start)) })
	running, err := l.guest.Run(ctx, p, streams)
	calledOff := !goesOn()
	if calledOff {
		cancel(context.Cause(start))
	}
	if err == nil && (calledOff || !timer.Stop()) {
		_, err = running.Wait() // it was canceled
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		timer.Stop()
		cancel(nil)
		return nil, l.blame(err)
	}
	return lasting{running, cancel}, nil
}

// lasting ends the context of a process when that has ended.
type lasting struct {
	guest.Running
	cancel context.CancelCauseFunc
}

func (l lasting) Wait() (guest.Exit, error) {
	defer l.cancel(nil)
	return l.Running.Wait()
}

func (l *line) endOf(e guest.Exit, err error) end {
	if err != nil {
		return end{code: codeLost, message: l.blame(err).Error()}
	}
	return end{code: e.Code, oomKilled: e.OOMKilled}
}

// blame names the end of the channel, if that is why a stream failed: by itself the
// stream just ends.
func (l *line) blame(err error) error {
	select {
	case <-l.session.Done():
		if !errors.Is(err, errChannelEnded) {
			return fmt.Errorf("%w (%w)", errChannelEnded, err)
		}
	default:
	}
	return err
}

// streams are the log, as what a process in a guest writes to.
func (o *output) streams(tty bool, done <-chan struct{}) guest.Streams {
	s := guest.Streams{Stdout: o.sink(logfile.Stdout), Stderr: o.sink(logfile.Stderr)}
	if tty {
		// The end of its input would be the end of a shell at the terminal, which
		// nobody has typed.
		s.Stdin = silence(done)
	}
	return s
}

// silence is an input that says nothing until the channel is closed.
type silence <-chan struct{}

func (s silence) Read([]byte) (int, error) {
	<-s
	return 0, io.EOF
}
