package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/launch"
)

// launchTimeout is the timeout for a process that neither runs its program nor ends, for example
// in a frozen cgroup.
const launchTimeout = 2 * time.Minute

// runProcess runs a plain process with the pipes of the log.
func (s *Server) runProcess(ctx context.Context, o shim.Start) (*live, error) {
	if err := o.Process.Validate(); err != nil {
		return nil, err
	}
	out, err := newOutput(o)
	if err != nil {
		return nil, err
	}
	pid, ended, err := s.spawnProcess(ctx, *o.Process, out)
	if err != nil {
		return nil, errors.Join(err, out.finish(time.Now()))
	}
	l := s.child(pid, ended, out)
	l.signal = func(sig syscall.Signal) error {
		if sig == syscall.SIGKILL {
			return s.reaper.kill(pid, -pid, sig) // it leads its group, and cannot leave it
		}
		return s.reaper.kill(pid, pid, sig)
	}
	return l, nil
}

// spawnProcess returns when the program runs.
func (s *Server) spawnProcess(ctx context.Context, p launch.Process, out *output) (int, <-chan exit, error) {
	sent, send, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer sent.Close()
	attr := &syscall.ProcAttr{
		// The position of the error file is launch.ErrorFD.
		Dir: "/", Env: launch.Environ(p), Files: append(out.childFDs(), send.Fd()),
		Sys: &syscall.SysProcAttr{Setsid: true},
	}
	// /proc/self/exe is our own file, even if another file has its path now.
	pid, ended, err := s.reaper.spawn([]string{"/proc/self/exe", launch.Word}, attr)
	out.closeChildFDs()
	_ = send.Close()
	if err != nil {
		return 0, nil, fmt.Errorf("calling the supervisor's own program: %w", err)
	}
	_ = sent.SetReadDeadline(time.Now().Add(launchTimeout))
	defer context.AfterFunc(ctx, func() { _ = sent.SetReadDeadline(time.Unix(1, 0)) })()
	if err := launch.ReadFailure(sent); err != nil {
		_ = s.reaper.kill(pid, pid, syscall.SIGKILL)
		<-ended
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return 0, nil, err
	}
	return pid, ended, nil
}
