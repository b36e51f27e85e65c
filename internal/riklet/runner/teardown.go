package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/mounts"
)

// extent is how much of an instance is taken back.
type extent int

const (
	// processes: containers, roots, the supervisor and its namespaces. What the
	// instance wrote into its volumes and logs stays.
	processes extent = iota
	// allButSnapshot: processes, but what the instance can go on from stays.
	allButSnapshot
	// allButLogs: processes, and what the instance wrote into its volumes.
	allButLogs
	// everything: nothing is left.
	everything
)

var errStopped = errors.New("the instance is being stopped")

// end brings the instance to its end: signals, then taking everything back,
// again and again until it succeeds.
func (m *machine) end(deadline time.Time, what extent) time.Time {
	m.save() // before anything is taken away: a successor must go on with it
	m.stopStarts(errStopped)
	m.endProbes()
	if m.release() || m.teardown.active {
		return time.Time{} // their end wakes us
	}
	if m.starts > 0 {
		return m.callOffStarts(deadline)
	}
	if at := m.endContainers(deadline); !at.IsZero() {
		return at
	}
	if m.teardown.retryAt.After(m.now()) {
		return m.teardown.retryAt
	}
	m.teardown.active = true
	m.hangUp()
	ctx, in := m.runCtx, m.rec.Instance
	m.task(func() func() {
		err := m.d.takeBack(ctx, in, what)
		return func() { m.tookBack(what, err) }
	})
	return time.Time{}
}

// A start takes a tenth of a second, and what it starts is then asked to end as all else.
// One that takes longer than startWait may hang, and nothing of it runs that could be
// asked. The order may come before the supervisor knows of the start, so it is repeated.
const (
	startWait       = 2 * time.Second
	callOffInterval = time.Second
)

// callOffStarts waits for the starts that are under way, but not for long. It gives the
// time of the next look, zero if their end is all there is to wait for.
func (m *machine) callOffStarts(deadline time.Time) time.Time {
	if m.shim == nil {
		return time.Time{}
	}
	now := m.now()
	if at := earliest(deadline, m.callOffAt); now.Before(at) {
		return at
	}
	ctx, client := m.runCtx, m.shim
	for _, c := range m.containers {
		if c.starting {
			m.task(func() func() {
				callOff(ctx, client, c.spec.Name)
				return nil
			})
		}
	}
	return now.Add(callOffInterval)
}

// hardKillTimeout is how long a container may take to die of SIGKILL before
// its runtime and its cgroup are asked to see to it.
const hardKillTimeout = 10 * time.Second

// endContainers signals what runs. It gives the time of the next look, zero
// when nothing runs any more or signals do not help.
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
		c.signal(signalNumber(m.rec.Containers[c.spec.Name].StopSignal))
		next = earliest(next, deadline)
	}
	return next
}

// longestTeardownDelay bounds the pause before something is taken back again: what stood
// in the way may go at any time, and what is left holds memory and processor time.
const longestTeardownDelay = 10 * time.Second

func (m *machine) tookBack(what extent, err error) {
	m.teardown.active = false
	if err != nil {
		if m.runCtx.Err() == nil {
			m.teardown.failed(m.now(), longestTeardownDelay)
			m.trouble = err.Error()
			m.log.Warn("instance could not be taken back; it is tried again", "step", lifecycle.StepOf(err), "err", err)
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
	m.mu.Lock()
	m.ended = true
	m.mu.Unlock()
	m.dirty = true
	if what == everything {
		m.rec.Terminated = true
		m.log.Info("instance is gone")
		return
	}
	m.rec.Final.Released = true
	if m.rec.Stop != nil { // it came meanwhile, and has more to take away
		m.log.Debug("instance ended and is to go away")
	}
}

// takeBack undoes whatever was made of an instance, by whomever. It needs
// nothing but the UID: an instance without a template is an orphan.
func (d *Driver) takeBack(ctx context.Context, in instance.Instance, what extent) error {
	names, err := d.containersOf(in)
	if err != nil {
		return err
	}
	for _, name := range names {
		for _, e := range d.enginesOf(in) {
			f := &fill{d: d, engine: e, in: in, c: rikv1alpha1.Container{Name: name}}
			if err := f.sequence().Undo(ctx); err != nil {
				return fmt.Errorf("container %s: %w", name, err)
			}
		}
	}
	if err := d.removeCgroup(ctx, in.UID); err != nil {
		return err
	}
	b := &build{d: d, in: in, keep: what == allButSnapshot}
	if what != everything {
		err := lifecycle.Sequence{Hook: d.cfg.Hook, Steps: b.processes()}.Undo(ctx)
		if err == nil && what == allButLogs {
			err = d.removeWritten(in.UID)
		}
		return err
	}
	if err := b.sequence().Undo(ctx); err != nil {
		return err
	}
	return mounts.RemoveAll(d.rootDir(in.UID))
}

func (d *Driver) removeCgroup(ctx context.Context, uid string) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	return d.cgroups.Destroy(ctx, d.cgroup(uid))
}

// containersOf lists the containers that an instance has or left anything of.
func (d *Driver) containersOf(in instance.Instance) ([]string, error) {
	var names []string
	for _, c := range allContainers(in.Template) {
		names = append(names, c.Name)
	}
	for _, e := range d.enginesOf(in) {
		ids, err := e.traces()
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if uid, name, ok := splitID(id); ok && uid == in.UID {
				names = append(names, name)
			}
		}
	}
	if entries, err := os.ReadDir(d.bundle(in.UID, "")); err == nil {
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
