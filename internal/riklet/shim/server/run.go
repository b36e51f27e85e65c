package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/riklet/shim"
)

// run is one run of a container.
type run struct {
	shim.Container
	live *live // set once its process exists
	// launched is closed when it is known whether the process runs. After that, failed does not
	// change and may be read without the lock.
	launched chan struct{}
	failed   error
	// cancelStart cancels its launch, if that is in progress.
	cancelStart context.CancelCauseFunc
}

// errStartCanceled is the error of a start whose container received SIGKILL before it ran.
var errStartCanceled = errors.New("the start was canceled: the container was killed before it ran")

// live is a running process of any kind.
type live struct {
	pid int
	// wait returns when the process has ended. It may be called once, before out is finished.
	wait func() end
	// signal does nothing if the process has ended.
	signal func(syscall.Signal) error
	out    *output
}

// end describes how a run ended.
type end struct {
	code      int
	oomKilled bool
	message   string
	neverRan  bool // its last output has the reason
}

// child is a process whose exit the reaper reports.
func (s *Server) child(pid int, ended <-chan exit, out *output) *live {
	return &live{
		pid: pid, out: out,
		wait: func() end {
			e := <-ended
			return end{code: e.code, neverRan: e.unexecuted}
		},
		signal: func(sig syscall.Signal) error { return s.reaper.kill(pid, pid, sig) },
	}
}

// start runs a container. If the attempt exists already, it returns that run, because an agent
// that died while waiting repeats its request.
func (s *Server) start(o shim.Start) (shim.Container, error) {
	s.mu.Lock()
	if old := s.containers[o.Container]; old != nil && (old.Attempt == o.Attempt || !old.Exited) {
		s.mu.Unlock()
		if old.Attempt != o.Attempt {
			return shim.Container{}, fmt.Errorf("attempt %d of container %q has not ended", old.Attempt, o.Container)
		}
		<-old.launched
		return s.latest(old), old.failed
	}
	begin, err := s.kind(o)
	if err != nil {
		s.mu.Unlock()
		return shim.Container{}, err
	}
	ctx, cancelStart := context.WithCancelCause(context.Background())
	defer cancelStart(nil)
	r := &run{
		Container: shim.Container{Name: o.Container, Attempt: o.Attempt}, launched: make(chan struct{}), cancelStart: cancelStart,
	}
	s.containers[o.Container] = r
	s.mu.Unlock()

	l, err := launchMarked(ctx, o, begin)
	s.mu.Lock()
	r.live, r.failed, r.StartedAt = l, err, time.Now()
	if err == nil {
		r.PID = l.pid
	} else if s.containers[o.Container] == r {
		delete(s.containers, o.Container)
	}
	s.mu.Unlock()
	close(r.launched)
	if err != nil {
		s.leave()
		return shim.Container{}, err
	}
	go s.watch(o, r)
	return s.latest(r), nil
}

// launcher starts one kind of process, and returns once it runs. If the context ends before
// that, it kills what it has started and returns the cause.
type launcher func(context.Context, shim.Start) (*live, error)

// kind returns the launcher for the requested kind of process.
func (s *Server) kind(o shim.Start) (launcher, error) {
	switch {
	case len(o.Argv) > 0 && o.Process == nil && o.Guest == nil:
		return s.runContainer, nil
	case len(o.Argv) == 0 && o.Process != nil && o.Guest == nil:
		return s.runProcess, nil
	case len(o.Argv) == 0 && o.Process == nil && o.Guest != nil:
		return s.runGuest, nil
	}
	return nil, fmt.Errorf("the start of container %q names no runtime, process or guest, or more than one", o.Container)
}

func launchMarked(ctx context.Context, o shim.Start, begin launcher) (*live, error) {
	if err := os.WriteFile(o.MarkFile, []byte(strconv.Itoa(o.Attempt)), 0o600); err != nil {
		return nil, fmt.Errorf("recording the start: %w", err)
	}
	return begin(ctx, o)
}

func (s *Server) latest(r *run) shim.Container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.Container
}

// watch waits for the end of a run, saves it durably and reports it.
func (s *Server) watch(o shim.Start, r *run) {
	how := r.live.wait()
	finished := time.Now()
	// Finish the log before the exit is reported, so that a client that sees the exit can read
	// the whole log.
	lost := r.live.out.finish(finished.Add(drainTimeout))
	c := s.latest(r)
	c.Exited, c.ExitCode, c.FinishedAt = true, how.code, finished
	c.OOMKilled, c.Message = how.oomKilled, how.message
	if how.neverRan {
		c.NeverRan, c.Message = true, refusal(o)
	}
	if lost != nil {
		c.LogError = lost.Error()
	}
	if err := writeDurable(o.ExitFile, c); err != nil {
		fmt.Fprintf(os.Stderr, "recording the end of %s: %v\n", c.Name, err)
	}
	s.mu.Lock()
	r.Container = c
	s.mu.Unlock()
	s.send(c)
	s.leave()
}

// writeDurable replaces the file atomically.
func writeDurable(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, data)
}
