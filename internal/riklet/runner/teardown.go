package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/runner/engine"
)

// extent is how much of an instance is removed.
type extent int

const (
	// processes removes containers, root file systems, the supervisor and its namespaces. The
	// instance's volumes and logs stay.
	processes extent = iota
	// allButSnapshot is processes, but what the instance needs to resume from its snapshot stays.
	allButSnapshot
	// allButLogs is processes and what the instance wrote into its volumes.
	allButLogs
	// everything leaves nothing.
	everything
)

var errStopped = errors.New("the instance is being stopped")

// endState is the state of a machine whose instance ends.
type endState struct {
	teardown       attempts
	serving        bool      // it served ports when its stop was ordered
	signalAt       time.Time // the earliest time of the stop signal
	cancelStartsAt time.Time // when starts under way are canceled at its end; zero: at the deadline
	// evicting is set when the instance was chosen for eviction because the disk is full. Any
	// goroutine may read it.
	evicting atomic.Bool
}

// end ends the instance: it sends signals and then tears everything down, with retries until that
// succeeds.
func (m *machine) end(deadline time.Time, what extent) time.Time {
	m.save() // before the teardown: after a restart, it must continue
	m.stopStarts(errStopped)
	m.endProbes()
	if m.release() || m.teardown.active {
		return time.Time{} // their end wakes this machine
	}
	if m.starts > 0 {
		return m.cancelStarts(deadline)
	}
	if at := m.endContainers(deadline); !at.IsZero() {
		return at
	}
	if m.teardown.retryAt.After(m.now()) {
		return m.teardown.retryAt
	}
	m.teardown.active = true
	m.disconnect()
	ctx := m.runCtx
	m.task(func() func() {
		err := m.d.tearDown(ctx, m.in, what)
		return func() { m.tornDown(what, err) }
	})
	return time.Time{}
}

// A start usually takes a tenth of a second, and then the started process receives the stop
// signal like any other. A start that takes longer than startWait may hang, and it has no process
// yet that could receive a signal. The order to cancel may arrive before the supervisor has
// registered the start, so it is repeated.
const (
	startWait      = 2 * time.Second
	cancelInterval = time.Second
)

// cancelStarts waits a limited time for the starts that are under way, and then cancels them. It
// returns when to look again. The zero time means that the end of the starts wakes the machine.
func (m *machine) cancelStarts(deadline time.Time) time.Time {
	if m.shim == nil {
		return time.Time{}
	}
	now := m.now()
	if at := earliest(deadline, m.cancelStartsAt); now.Before(at) {
		return at
	}
	ctx, client := m.runCtx, m.shim
	for _, c := range m.containers {
		if c.starting {
			m.task(func() func() {
				engine.Cancel(ctx, client, c.spec.Name)
				return nil
			})
		}
	}
	return now.Add(cancelInterval)
}

// hardKillTimeout is how long to wait after SIGKILL before the runtime and the cgroup are used to
// end a container.
const hardKillTimeout = 10 * time.Second

// endContainers sends signals to the running containers. It returns when to look again, or the
// zero time if nothing runs any more or signals do not help.
func (m *machine) endContainers(deadline time.Time) time.Time {
	now := m.now()
	if m.shim == nil || !now.Before(deadline.Add(hardKillTimeout)) {
		return time.Time{}
	}
	next := time.Time{}
	for _, c := range m.containers {
		if m.rec.Containers[c.spec.Name].State != rikv1alpha1.ContainerRunning {
			continue
		}
		if !now.Before(deadline) {
			c.signal(syscall.SIGKILL)
			next = deadline.Add(hardKillTimeout)
			continue
		}
		if m.signalAt.After(now) {
			next = earliest(next, m.signalAt)
			continue
		}
		c.signal(engine.SignalNumber(m.rec.Containers[c.spec.Name].StopSignal))
		next = earliest(next, deadline)
	}
	return next
}

// maxTeardownDelay bounds the back-off between teardown attempts. The obstacle may disappear
// at any time, and the remains occupy memory and processor time.
const maxTeardownDelay = 10 * time.Second

func (m *machine) tornDown(what extent, err error) {
	m.teardown.active = false
	if err != nil {
		if m.runCtx.Err() == nil {
			m.teardown.failed(m.now(), maxTeardownDelay)
			m.trouble = err.Error()
			m.log.Warn("removing an instance failed; it is tried again", "step", lifecycle.StepOf(err), "err", err)
		}
		return
	}
	m.teardown, m.trouble, m.prepared, m.attachment = attempts{}, "", false, nil
	now := m.now()
	for _, c := range m.containers {
		if s := m.rec.Containers[c.spec.Name]; s.State == rikv1alpha1.ContainerRunning {
			m.setContainer(c.spec.Name, exited(s, 128+9, reasonError, "it did not end by itself", now))
		}
	}
	m.setOver()
	m.dirty = true
	if what == everything {
		m.rec.Terminated = true
		m.log.Info("instance removed")
		return
	}
	m.rec.Final.Released = true
	if m.rec.Stop != nil { // a stop came meanwhile, and it removes more
		m.log.Debug("instance has ended and is also stopped")
	}
}

// tearDown undoes everything that was created for an instance, by this process or an earlier one.
// It needs only the UID: an instance without a template is an orphan.
func (d *Driver) tearDown(ctx context.Context, in instance.Instance, what extent) error {
	names, err := d.containersOf(in)
	if err != nil {
		return err
	}
	for _, name := range names {
		for _, e := range d.enginesOf(in) {
			f := &fill{d: d, engine: e, Attempt: engine.Attempt{Node: d.node(), Instance: in, Container: rikv1alpha1.Container{Name: name}}}
			if err := f.sequence().Undo(ctx); err != nil {
				return fmt.Errorf("container %s: %w", name, err)
			}
		}
	}
	if err := d.removeCgroup(ctx, in.UID); err != nil {
		return err
	}
	b := &build{d: d, Sandbox: engine.Sandbox{Instance: in, KeepSnapshot: what == allButSnapshot}}
	if what != everything {
		err := b.sequence(false).Undo(ctx)
		if err == nil && what == allButLogs {
			err = d.removeWritten(in)
		}
		return err
	}
	if err := b.sequence(true).Undo(ctx); err != nil {
		return err
	}
	return mounts.RemoveAll(d.paths.RootDir(in.UID))
}

func (d *Driver) removeCgroup(ctx context.Context, uid string) error {
	ctx, cancel := context.WithTimeout(ctx, engine.EndTimeout)
	defer cancel()
	return d.cgroups.Destroy(ctx, d.cgroup(uid))
}

// containersOf lists the containers of an instance, including those that only left traces.
func (d *Driver) containersOf(in instance.Instance) ([]string, error) {
	var names []string
	for _, c := range engine.Containers(in.Template) {
		names = append(names, c.Name)
	}
	for _, e := range d.enginesOf(in) {
		ids, err := e.Traces()
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if uid, name, ok := engine.SplitID(id); ok && uid == in.UID {
				names = append(names, name)
			}
		}
	}
	if entries, err := os.ReadDir(d.paths.Bundle(in.UID, "")); err == nil {
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
