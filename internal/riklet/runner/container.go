package runner

import (
	"context"
	"errors"
	"syscall"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/progress"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim"
)

// container is one container of a machine. It belongs to the machine's goroutine.
type container struct {
	m     *machine
	spec  rikv1alpha1.Container
	index int
	init  bool

	starting bool
	pulling  string          // the progress of a slow image pull
	early    *shim.Container // an exit that was reported before the result of the start
	sent     syscall.Signal  // the last signal that was sent to end it
	killAt   time.Time       // when the grace period after a failed liveness probe ends
	killWhy  string
	cancel   context.CancelFunc // ends the probes of the current run
	address  string             // where the probes of the current run connect; "": to the instance's loopback
}

func (c *container) state() rikv1alpha1.ContainerState { return c.m.rec.Containers[c.spec.Name].State }

// start begins the next attempt, in another goroutine.
func (c *container) start() {
	m := c.m
	s := m.rec.Containers[c.spec.Name]
	f := &fill{d: m.d, engine: m.engine, again: s.Attempt > 0 || s.Reason != "", Attempt: engine.Attempt{
		Node: m.d.node(), Instance: m.in, Container: c.spec, Index: c.index, Number: s.Attempt + 1,
		Address: m.address(), Supervisor: m.shim,
	}}
	if m.in.Template.RestartPolicy == rikv1alpha1.RestartNever {
		// At most one attempt: it must be durable that it was tried, before it is tried.
		rec := m.snapshot()
		s.Attempt++
		rec.Containers[c.spec.Name] = s
		f.BeforeStart = func() error { return m.d.store.Put(rec) }
	}
	f.report = func(p progress.Progress) {
		m.post(func() {
			if c.starting {
				c.pulling = p.String()
			}
		})
	}
	c.begin()
	m.startTask(func(ctx context.Context) func() {
		got, err := f.run(ctx)
		return func() { c.started(f, got, err) }
	})
}

// join waits for a start that an earlier riklet process ordered.
func (c *container) join(attempt int) {
	c.begin()
	m, client := c.m, c.m.shim
	m.startTask(func(ctx context.Context) func() {
		got, err := client.Start(ctx, shim.Start{Container: c.spec.Name, Attempt: attempt})
		return func() { c.started(&fill{Attempt: engine.Attempt{Number: attempt}}, got, err) }
	})
}

func (c *container) begin() {
	c.starting, c.pulling, c.sent, c.killAt, c.killWhy = true, "", 0, time.Time{}, ""
}

// started handles the result of a start.
func (c *container) started(f *fill, got shim.Container, err error) {
	m := c.m
	c.starting, c.pulling = false, ""
	s := m.rec.Containers[c.spec.Name]
	if f.Note != (engine.ImageNote{}) {
		s.ImageDigest, s.StopSignal = f.Note.Digest, f.Note.StopSignal
	}
	if err != nil {
		c.notStarted(f, err)
		return
	}
	s.State, s.Reason, s.Message, s.ExitCode = rikv1alpha1.ContainerRunning, "", "", nil
	s.Attempt, s.Restarts = f.Number, int32(f.Number-1)
	s.StartedAt, s.FinishedAt, s.Begun, s.Ready, s.OOMKills = got.StartedAt, time.Time{}, false, false, 0
	if m.rec.StartedAt.IsZero() {
		m.rec.StartedAt = got.StartedAt
	}
	m.setContainer(c.spec.Name, s)
	if early := c.early; early != nil {
		c.early = nil
		m.exited(*early)
		return
	}
	if got.Exited {
		m.exited(got)
		return
	}
	c.beginProbes()
}

// codeNotStarted is the exit code of a container that could not be started, as in the CRI plugin
// of containerd (errorStartExitCode).
const codeNotStarted = 128

// notStarted handles a failed start.
func (c *container) notStarted(f *fill, err error) {
	m := c.m
	if m.startCtx.Err() != nil || errors.Is(err, shim.ErrGone) {
		return // stopped, or the supervisor is gone, which is reported separately
	}
	s := m.rec.Containers[c.spec.Name]
	var config *engine.ConfigError
	m.log.Warn("starting a container failed", "container", c.spec.Name, "step", lifecycle.StepOf(err), "err", err)
	switch step := lifecycle.StepOf(err); {
	case m.permanent(err):
		reason := reasonConfig
		if step == stepImage {
			reason = reasonInvalidImage
		}
		m.setContainer(c.spec.Name, startDelayed(s, reason, err.Error(), m.now()))
		m.finish(outcome{rikv1alpha1.InstanceFailed, reason, ofContainer(c.spec.Name, err.Error())})
	case step == stepImage:
		m.setContainer(c.spec.Name, startDelayed(s, reasonImagePull, err.Error(), m.now()))
	case errors.As(err, &config):
		m.setContainer(c.spec.Name, startDelayed(s, reasonConfig, err.Error(), m.now()))
	case step == stepStart:
		s.Attempt, s.Restarts, s.StartedAt = f.Number, int32(f.Number-1), time.Time{}
		m.setContainer(c.spec.Name, exited(s, codeNotStarted, reasonStart, err.Error(), m.now()))
	default:
		m.setContainer(c.spec.Name, startDelayed(s, reasonStart, err.Error(), m.now()))
	}
}

// permanent reports whether an error recurs at every attempt. The reason is that the revision of
// an instance never changes.
func (m *machine) permanent(err error) bool { return m.engine != nil && m.engine.IsPermanent(err) }

// exited handles the end of a container.
func (m *machine) exited(e shim.Container) {
	if e.Name == engine.VMM {
		m.vmEnded(e)
		return
	}
	c := m.container(e.Name)
	if c == nil {
		return
	}
	s := m.rec.Containers[e.Name]
	if c.starting {
		c.early = &e
		return
	}
	if s.State != rikv1alpha1.ContainerRunning || s.Attempt != e.Attempt {
		return // already recorded
	}
	c.endProbes()
	reason, message, code := reasonError, "", int32(e.ExitCode)
	switch {
	case e.NeverRan:
		reason, message, code = reasonStart, e.Message, codeNotStarted
	case e.OOMKilled || m.oomKills(e.Name) > 0:
		reason, message = reasonOOMKilled, oomMessage(e.ExitCode)
	case c.killWhy != "":
		reason, message = reasonUnhealthy, c.killWhy
	case e.Message != "": // a failure of its microVM
		reason, message = reasonVMEnded, e.Message
	case e.ExitCode == 0:
		reason = reasonCompleted
	}
	if e.LogError != "" {
		m.log.Warn("part of a container's output was lost", "container", e.Name, "err", e.LogError)
	}
	m.setContainer(e.Name, exited(s, code, reason, message, e.FinishedAt))
	m.log.Info("container ended", "container", e.Name, "code", code, "reason", reason)
}

// signal sends a signal that ends the container, once, in another goroutine.
func (c *container) signal(s syscall.Signal) {
	if c.sent == s || c.m.shim == nil {
		return
	}
	c.sent = s
	m, client, ctx := c.m, c.m.shim, c.m.runCtx
	m.task(func() func() {
		if s == syscall.SIGKILL {
			if err := m.d.cgroups.Unthrottle(m.d.cgroup(m.uid) + "/" + c.spec.Name); err != nil {
				m.log.Warn("removing the CPU limit of a container failed; its end may take long", "container", c.spec.Name, "err", err)
			}
		}
		err := m.engine.Signal(ctx, client, m.in, c.spec.Name, s)
		if err != nil && !errors.Is(err, shim.ErrGone) && ctx.Err() == nil {
			m.log.Warn("sending a signal failed", "container", c.spec.Name, "signal", s, "err", err)
		}
		return nil
	})
}

// fill makes one attempt to start a container, with the steps of its engine.
type fill struct {
	engine.Attempt
	d      *Driver
	engine *engine.Engine
	again  bool                    // something of an earlier attempt may exist
	report func(progress.Progress) // receives the progress of a slow pull or download; may be nil
}

// run starts the container. Only the steps after the fetch count toward Config.StartsAtOnce, so
// that a slow registry does not delay other instances.
func (f *fill) run(ctx context.Context) (shim.Container, error) {
	if f.again {
		if err := f.sequence().Undo(ctx); err != nil {
			return shim.Container{}, err
		}
	}
	all := f.sequence()
	first, rest := all, all
	first.Steps, rest.Steps = all.Steps[:1], all.Steps[1:]
	if err := progress.Watch(ctx, f.report, first.Do); err != nil {
		return shim.Container{}, err
	}
	release, err := f.d.startSlot(ctx)
	if err != nil {
		return shim.Container{}, err
	}
	defer release()
	if err := rest.Do(ctx); err != nil {
		return shim.Container{}, err
	}
	return f.Started, nil
}
