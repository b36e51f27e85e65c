package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/archive"
	"rik.dev/rik/internal/riklet/disk"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/progress"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/vmm"
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
	f := &fill{
		d: m.d, engine: m.engine, in: m.rec.Instance, c: c.spec, index: c.index, shim: m.shim, attempt: s.Attempt + 1,
		again: s.Attempt > 0 || s.Reason != "", address: m.address(),
	}
	if m.rec.Instance.Template.RestartPolicy == rikv1alpha1.RestartNever {
		// At most one attempt: it must be durable that it was tried, before it is tried.
		rec := m.snapshot()
		s.Attempt++
		rec.Containers[c.spec.Name] = s
		f.before = func() error { return m.d.store.Put(rec) }
	}
	f.report = func(p progress.Progress) {
		m.post(func() {
			if c.starting {
				c.pulling = p.String()
			}
		})
	}
	c.begin()
	ctx := m.startCtx
	m.task(func() func() {
		got, err := f.run(ctx)
		return func() { c.started(f, got, err) }
	})
}

// join waits for a start that an earlier riklet process ordered.
func (c *container) join(attempt int) {
	c.begin()
	m, client := c.m, c.m.shim
	ctx := m.startCtx
	m.task(func() func() {
		got, err := client.Start(ctx, shim.Start{Container: c.spec.Name, Attempt: attempt})
		return func() { c.started(&fill{attempt: attempt}, got, err) }
	})
}

func (c *container) begin() {
	c.starting, c.pulling, c.sent, c.killAt, c.killWhy = true, "", 0, time.Time{}, ""
	c.m.starts++
}

// started handles the result of a start.
func (c *container) started(f *fill, got shim.Container, err error) {
	m := c.m
	m.starts--
	c.starting, c.pulling = false, ""
	s := m.rec.Containers[c.spec.Name]
	if f.note != (imageNote{}) {
		s.ImageDigest, s.StopSignal = f.note.Digest, f.note.StopSignal
	}
	if err != nil {
		c.notStarted(f, err)
		return
	}
	s.State, s.Reason, s.Message, s.ExitCode = rikv1alpha1.ContainerRunning, "", "", nil
	s.Attempt, s.Restarts = f.attempt, int32(f.attempt-1) //nolint:gosec // counts restarts that take a second each
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
	var config *configError
	m.log.Warn("container could not be started", "container", c.spec.Name, "step", lifecycle.StepOf(err), "err", err)
	switch step := lifecycle.StepOf(err); {
	case permanent(err):
		reason := reasonConfig
		if step == stepImage {
			reason = reasonInvalidImage
		}
		m.setContainer(c.spec.Name, heldUp(s, reason, err.Error(), m.now()))
		m.finish(outcome{rikv1alpha1.InstanceFailed, reason, ofContainer(c.spec.Name, err.Error())})
	case step == stepImage:
		m.setContainer(c.spec.Name, heldUp(s, reasonImagePull, err.Error(), m.now()))
	case errors.As(err, &config):
		m.setContainer(c.spec.Name, heldUp(s, reasonConfig, err.Error(), m.now()))
	case step == stepStart:
		s.Attempt, s.Restarts, s.StartedAt = f.attempt, int32(f.attempt-1), time.Time{} //nolint:gosec // as above
		m.setContainer(c.spec.Name, exited(s, codeNotStarted, reasonStart, err.Error(), m.now()))
	default:
		m.setContainer(c.spec.Name, heldUp(s, reasonStart, err.Error(), m.now()))
	}
}

// permanent reports whether an error recurs at every attempt. The reason is that the revision of
// an instance never changes.
func permanent(err error) bool {
	for _, e := range []error{
		image.ErrInvalidReference, image.ErrRefused, image.ErrTooLarge, image.ErrDigest, image.ErrPlatform, image.ErrUnsupported,
		spec.ErrNoCommand, spec.ErrUser, spec.ErrCapability, spec.ErrVolume,
		archive.ErrRefused, archive.ErrTooLarge, archive.ErrNotFound, errRootApp,
		disk.ErrRefused, disk.ErrTooLarge, disk.ErrDigest, vmm.ErrInvalid, errStopSignal,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// exited handles the end of a container.
func (m *machine) exited(e shim.Container) {
	if e.Name == vmmContainer {
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
	reason, message, code := reasonError, "", int32(e.ExitCode) //nolint:gosec // 0..255
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
		m.log.Warn("a container's output was lost", "container", e.Name, "err", e.LogError)
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
				m.log.Warn("a container that is killed may take long to die", "container", c.spec.Name, "err", err)
			}
		}
		err := m.engine.signal(ctx, client, m.rec.Instance, c.spec.Name, s)
		if err != nil && !errors.Is(err, shim.ErrGone) && ctx.Err() == nil {
			m.log.Warn("a signal could not be sent", "container", c.spec.Name, "signal", s, "err", err)
		}
		return nil
	})
}

// Names of the steps that create a container.
const (
	stepImage  = "image"
	stepRootfs = "rootfs"
	stepBundle = "bundle"
	stepStart  = "start"
)

// fill makes one attempt to start a container, with the steps of its engine.
type fill struct {
	d       *Driver
	engine  engine
	in      instance.Instance
	c       rikv1alpha1.Container
	address string // the instance's address
	index   int
	attempt int
	again   bool // something of an earlier attempt may exist
	shim    *shim.Client
	before  func() error            // called just before the container starts; may be nil
	report  func(progress.Progress) // receives the progress of a slow pull or download; may be nil

	note imageNote // what runs, known once the image was fetched
	got  shim.Container
}

func (f *fill) id() string { return containerID(f.in.UID, f.c.Name) }

func (f *fill) cgroup() string { return f.d.cgroup(f.in.UID) + "/" + f.c.Name }

func (f *fill) sequence() lifecycle.Sequence {
	return lifecycle.Sequence{Hook: f.d.cfg.Hook, Steps: f.engine.container(f)}
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
	release, err := f.d.turn(ctx)
	if err != nil {
		return shim.Container{}, err
	}
	defer release()
	if err := rest.Do(ctx); err != nil {
		return shim.Container{}, err
	}
	return f.got, nil
}

// imageNote is what must be known about a container's image after a crash.
type imageNote struct{ Digest, StopSignal string }

// makeBundle creates the container's bundle directory and writes its imageNote there.
func (f *fill) makeBundle() (dir string, err error) {
	dir = f.d.bundle(f.in.UID, f.c.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return dir, writeJSON(f.d.imageFile(f.in.UID, f.c.Name), f.note)
}

func (f *fill) removeBundle(context.Context) error {
	if err := f.d.removeSubPaths(f.in.UID, f.c.Name); err != nil {
		return err
	}
	return os.RemoveAll(f.d.bundle(f.in.UID, f.c.Name))
}

// startTimeout bounds the wait for the supervisor's answer to a start. The wait continues even if
// the instance is stopped meanwhile, because it must be known what the start created. A start
// that hangs is canceled here or by callOffStarts.
const startTimeout = 3 * time.Minute

var errNoStart = fmt.Errorf("it did not start within %v", startTimeout)

// start sends the start order to the supervisor. The engine supplies what to run.
func (f *fill) start(ctx context.Context, order shim.Start) (err error) {
	if f.before != nil {
		if err := f.before(); err != nil {
			return err
		}
	}
	d, uid, name := f.d, f.in.UID, f.c.Name
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), startTimeout, errNoStart)
	defer cancel()
	order.Container, order.Attempt = name, f.attempt
	order.LogDir, order.LogLimits = d.logDir(uid, name), d.cfg.LogLimits
	order.MarkFile, order.ExitFile = d.markFile(uid, name), d.exitFile(uid, name)
	f.got, err = f.shim.Start(ctx, order)
	if errors.Is(err, errNoStart) {
		callOff(context.WithoutCancel(ctx), f.shim, name)
	}
	return err
}

// callOff cancels a start that is under way. What the start has created so far is then undone as
// after any failed start.
func callOff(ctx context.Context, client *shim.Client, container string) {
	ctx, cancel := context.WithTimeout(ctx, callOffTimeout)
	defer cancel()
	_ = client.Signal(ctx, container, syscall.SIGKILL) // an error: nothing to cancel
}

// callOffTimeout bounds the wait for a supervisor that only has to send a signal.
const callOffTimeout = 10 * time.Second

// removeCgroup kills what still runs in the container's cgroup, and removes the cgroup.
func (f *fill) removeCgroup(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	return f.d.cgroups.Destroy(ctx, f.cgroup())
}

// lastRun reads the files that a supervisor left about a container: the last attempt that it
// began, and how that run ended. end is nil if the end is not known.
func (d *Driver) lastRun(uid, name string) (attempt int, end *shim.Container) {
	if data, err := os.ReadFile(d.markFile(uid, name)); err == nil {
		attempt, _ = strconv.Atoi(string(data))
	}
	data, err := os.ReadFile(d.exitFile(uid, name))
	if errors.Is(err, fs.ErrNotExist) {
		return attempt, nil
	}
	var c shim.Container
	if err != nil || json.Unmarshal(data, &c) != nil || c.Name != name {
		return attempt, nil
	}
	return max(attempt, c.Attempt), &c
}
