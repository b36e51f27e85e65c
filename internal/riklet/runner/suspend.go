package runner

import (
	"context"
	"errors"
	"fmt"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
)

// errHolding is returned while an instance is being suspended or resumed.
var errHolding = errors.New("the instance is being suspended or resumed already")

// Suspend holds the processes of an instance.
func (d *Driver) Suspend(ctx context.Context, uid string, in instance.Place) error {
	if in == instance.OnDisk {
		return d.order(ctx, uid, (*machine).park)
	}
	return d.order(ctx, uid, func(m *machine, done func(error)) { m.hold(true, done) })
}

// Resume lets them go on.
func (d *Driver) Resume(ctx context.Context, uid string) error {
	return d.order(ctx, uid, func(m *machine, done func(error)) {
		if m.rec.OnDisk {
			m.unpark(done)
			return
		}
		m.hold(false, done)
	})
}

// order gives an instance's owner an order and waits until it says that it is done. Who
// waits no longer does not call it back.
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

// hold begins to suspend or resume, beside the owner.
func (m *machine) hold(held bool, done func(error)) {
	running, err := m.holdable()
	switch {
	case m.holding:
		err = errHolding
	case m.rec.OnDisk, err == nil && m.rec.Suspended == held:
		done(nil) // what is on disk does not run either
		return
	}
	if err != nil {
		done(err)
		return
	}
	m.holding = true
	if held { // what does not run cannot answer
		m.endProbes()
	}
	ctx := m.runCtx
	m.task(func() func() {
		err := m.engine.hold(ctx, m, running, held)
		return func() { m.held(held, err, done) }
	})
}

// holdable lists the containers that run, if the instance can be suspended now.
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

// held takes the result. One that failed half-way is as it was for everybody else:
// it is asked again.
func (m *machine) held(held bool, err error, done func(error)) {
	m.holding = false
	if err == nil {
		m.rec.Suspended, m.dirty = held, true
		m.log.Info("instance is held or goes on", "suspended", held)
		m.save()
	}
	m.probeAgain()
	m.publish() // who is told that it is so may ask at once
	done(err)
}

// probeAgain begins the probes of what runs and has none.
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

// release lets an instance go on that is to end: what is held takes no signal. It
// reports whether that is under way. One on disk has nothing that could end by itself.
func (m *machine) release() bool {
	if m.rec.Suspended && !m.rec.OnDisk && !m.holding {
		m.holding = true
		ctx, engine, running := m.runCtx, m.engine, m.running()
		m.task(func() func() {
			err := engine.hold(ctx, m, running, false)
			return func() {
				if err != nil && ctx.Err() == nil {
					m.log.Warn("a suspended instance does not go on; it is ended hard", "err", err)
				}
				m.holding = false
				m.rec.Suspended, m.dirty = false, true
			}
		})
	}
	return m.holding
}

// suspended tells why nothing inside can be reached, nil if it can.
func (m *machine) suspended() error {
	if o, _ := m.observation(); o.Status.Suspended {
		return fmt.Errorf("%w: the instance is suspended; rikctl resume lets it go on", instance.ErrNotRunning)
	}
	return nil
}
