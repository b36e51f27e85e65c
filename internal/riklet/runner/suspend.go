package runner

import (
	"context"
	"errors"
	"fmt"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
)

// errHolding is returned while an instance is already being suspended or resumed.
var errHolding = errors.New("the instance is being suspended or resumed already")

// suspension is the state of a machine whose instance is suspended or resumed.
type suspension struct {
	holding     bool        // a suspend or resume is under way
	restoring   func(error) // reports the result of a resume from disk; nil: none is under way
	diskCleanup attempts    // attempts to undo what an instance on disk still has on the node
}

// Suspend pauses the processes of an instance.
func (d *Driver) Suspend(ctx context.Context, uid string, in instance.Place) error {
	if in == instance.OnDisk {
		return d.order(ctx, uid, (*machine).suspendToDisk)
	}
	return d.order(ctx, uid, func(m *machine, done func(error)) { m.hold(true, done) })
}

// Resume lets the processes of an instance continue.
func (d *Driver) Resume(ctx context.Context, uid string) error {
	return d.order(ctx, uid, func(m *machine, done func(error)) {
		if m.rec.OnDisk {
			m.resumeFromDisk(done)
			return
		}
		m.hold(false, done)
	})
}

// order sends an order to an instance's machine and waits until the machine has finished it. If
// ctx ends first, order returns, but the order is not canceled.
func (d *Driver) order(ctx context.Context, uid string, give func(m *machine, done func(error))) error {
	m := d.machine(uid)
	if m == nil {
		return instance.ErrUnknown
	}
	done := make(chan error, 1)
	m.post(func() { give(m, func(err error) { done <- err }) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hold begins to suspend or resume in memory, in another goroutine.
func (m *machine) hold(held bool, done func(error)) {
	running, err := m.holdable()
	switch {
	case m.holding:
		err = errHolding
	case m.rec.OnDisk, err == nil && m.rec.Suspended == held:
		done(nil) // an instance on disk does not run either
		return
	}
	if err != nil {
		done(err)
		return
	}
	m.holding = true
	if held { // stop the probes: a paused container cannot answer
		m.endProbes()
	}
	ctx := m.runCtx
	m.task(func() func() {
		err := m.engine.Hold(ctx, m.in, running, held)
		return func() { m.held(held, err, done) }
	})
}

// holdable lists the running containers, if the instance can be suspended now.
func (m *machine) holdable() ([]string, error) {
	for _, c := range m.containers {
		if c.starting {
			return nil, fmt.Errorf("%w: container %q is starting", instance.ErrNotRunning, c.spec.Name)
		}
	}
	running := m.running()
	if len(running) == 0 || !m.prepared || m.rec.Stop != nil || m.rec.Final != nil {
		return nil, instance.ErrNotRunning
	}
	return running, nil
}

func (m *machine) running() []string {
	running := []string{}
	for _, c := range m.containers {
		if c.state() == rikv1alpha1.ContainerRunning {
			running = append(running, c.spec.Name)
		}
	}
	return running
}

// held handles the result of a suspend or resume. After a failure part of the way, the recorded
// state is unchanged, and the caller repeats the request.
func (m *machine) held(held bool, err error, done func(error)) {
	m.holding = false
	if err == nil {
		m.rec.Suspended, m.dirty = held, true
		m.log.Info("instance suspended or resumed", "suspended", held)
		m.save()
	}
	m.probeAgain()
	m.publish() // the caller may read the status at once
	done(err)
}

// probeAgain starts the probes of running containers that have none.
func (m *machine) probeAgain() {
	if m.rec.Suspended || m.rec.Stop != nil || m.rec.Final != nil {
		return
	}
	for _, c := range m.containers {
		if c.cancel == nil && c.state() == rikv1alpha1.ContainerRunning {
			c.beginProbes()
		}
	}
}

// release resumes a suspended instance that must end, because a paused process does not receive
// signals. It returns true while that is under way. An instance on disk has no processes.
func (m *machine) release() bool {
	if m.rec.Suspended && !m.rec.OnDisk && !m.holding {
		m.holding = true
		ctx, running := m.runCtx, m.running()
		m.task(func() func() {
			err := m.engine.Hold(ctx, m.in, running, false)
			return func() {
				if err != nil && ctx.Err() == nil {
					m.log.Warn("resuming a suspended instance for its end failed; it is killed", "err", err)
				}
				m.holding = false
				m.rec.Suspended, m.dirty = false, true
			}
		})
	}
	return m.holding
}

// suspended returns why the inside of the instance cannot be reached, or nil if it can.
func (m *machine) suspended() error {
	if o, _ := m.observation(); o.Status.Suspended {
		return fmt.Errorf("%w: the instance is suspended; continue it with rikctl resume", instance.ErrNotRunning)
	}
	return nil
}
