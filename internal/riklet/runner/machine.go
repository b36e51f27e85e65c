package runner

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/state"
)

// machine is the runner of one instance. Its fields belong to the goroutine of run, except those
// that never change, the mailbox and what is published. Before run starts, they belong to Recover.
//
// Most of its parts are types next to the code that uses them. Those are preparation (prepare.go),
// suspension (suspend.go), ending (teardown.go) and checks (health.go).
type machine struct {
	d   *Driver
	uid string
	// in is the instance of the record. It never changes, so any goroutine may read it.
	in  instance.Instance
	log *slog.Logger
	// engine runs the instance's processes. It is nil if the instance's kind is not known.
	engine *engine.Engine

	mailbox
	published
	work

	rec        state.Record
	dirty      bool // the record differs from the saved one
	containers []*container
	shim       *shim.Client
	attachment *instance.Attachment // its network attachment, or nil
	trouble    string               // why the instance cannot be prepared or torn down
	gone       bool                 // it is forgotten; run ends

	preparation
	suspension
	endState
	checks
}

// attempts is an operation that is retried with a back-off, up to a longest delay.
type attempts struct {
	active   bool
	failures int
	retryAt  time.Time
}

func (a *attempts) failed(now time.Time, longest time.Duration) {
	a.active = false
	a.retryAt = now.Add(min(delay(a.failures), longest))
	a.failures++
}

func newMachine(d *Driver, rec state.Record) *machine {
	m := &machine{
		d: d, uid: rec.Instance.UID, in: rec.Instance, rec: rec, mailbox: newMailbox(),
		log: d.cfg.Logger.With("instance", rec.Instance.UID), engine: d.engineOf(rec.Instance.Template),
	}
	if m.rec.Containers == nil {
		m.rec.Containers = map[string]state.Container{}
	}
	t := rec.Instance.Template
	for i, c := range engine.Containers(t) {
		m.containers = append(m.containers, &container{m: m, spec: c, index: i, init: i < len(t.InitContainers)})
	}
	return m
}

// run drives the instance until ctx ends or the instance is forgotten. It does not stop the
// instance's processes.
func (m *machine) run(ctx context.Context) {
	m.begin(ctx)
	defer m.stopStarts(nil)
	m.attached()
	for {
		m.takeInbox()
		at := m.step()
		m.publish()
		m.save()
		if m.gone {
			break
		}
		var alarm <-chan time.Time
		if !at.IsZero() {
			alarm = m.d.cfg.Clock.After(max(at.Sub(m.now()), 0))
		}
		select {
		case <-ctx.Done():
			m.stopStarts(context.Cause(ctx))
			m.endProbes()
			m.disconnect()
			m.tasks.Wait()
			m.takeInbox()
			m.save()
			return
		case <-m.wake:
		case <-alarm:
		}
	}
	m.disconnect()
	m.tasks.Wait()
}

func (m *machine) now() time.Time { return m.d.cfg.Clock.Now() }

// step does what is due and returns when to look again. The zero time means: after the next
// event.
func (m *machine) step() time.Time {
	switch {
	case m.gone || m.rec.Terminated:
		return time.Time{}
	case m.rec.Stop != nil:
		return m.end(m.rec.Stop.Deadline, everything)
	case m.rec.Final != nil:
		if m.rec.Final.Released {
			return time.Time{}
		}
		return m.endByItself()
	default:
		return m.drive()
	}
}

// drive moves the instance toward the phase Running.
func (m *machine) drive() time.Time {
	if m.rec.OnDisk && (m.restoring == nil || m.diskCleanup.active) {
		return m.suspendStep()
	}
	if !m.prepared {
		return m.prepareStep()
	}
	if m.rec.Suspended || m.holding {
		return time.Time{}
	}
	d := decide(m.view(), m.now())
	if d.final != nil {
		m.finish(*d.final)
		return m.now() // look again at once, to tear it down
	}
	for _, name := range d.start {
		m.container(name).start()
	}
	return earliest(d.wake, m.killsDue(), m.refreshDue(), m.healthDue(), m.oomDue())
}

func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

func (m *machine) view() view {
	v := view{policy: m.in.Template.RestartPolicy}
	for _, c := range m.containers {
		cv := containerView{name: c.spec.Name, starting: c.starting, Container: m.rec.Containers[c.spec.Name]}
		if c.init {
			v.init = append(v.init, cv)
		} else {
			v.main = append(v.main, cv)
		}
	}
	return v
}

func (m *machine) container(name string) *container {
	for _, c := range m.containers {
		if c.spec.Name == name {
			return c
		}
	}
	return nil
}

// finish records how the instance ended. The machine then tears down what is left of it.
func (m *machine) finish(o outcome) {
	m.rec.Final = &state.Final{Phase: o.phase, Reason: o.reason, Message: o.message, At: m.now()}
	m.cancelStartsAt = m.now().Add(startWait)
	m.trouble, m.reason = "", "" // these were about the preparation; Final now describes the end
	m.dirty = true
	m.log.Info("instance ended", "phase", o.phase, "reason", o.reason)
}

// stop begins to delete the instance, or shortens the grace period of an earlier stop.
func (m *machine) stop(grace time.Duration) {
	if grace < 0 {
		grace = m.grace()
	}
	deadline := m.now().Add(grace)
	if m.rec.Terminated || (m.rec.Stop != nil && !deadline.Before(m.rec.Stop.Deadline)) {
		return
	}
	if m.rec.Stop == nil {
		m.serving, m.trouble, m.cancelStartsAt = m.serves(), "", m.now().Add(startWait)
	}
	var drain time.Duration
	if m.serving {
		drain = drainDelay(m.d.cfg.DrainDelay, grace)
	}
	if at := m.now().Add(drain); m.rec.Stop == nil || at.Before(m.signalAt) {
		m.signalAt = at
	}
	m.rec.Stop = &state.Stop{Deadline: deadline, Grace: grace}
	m.dirty = true
	m.dropRestoring()
	m.log.Info("stopping instance", "grace", grace)
}

func (m *machine) grace() time.Duration {
	if s := m.in.Template.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return 30 * time.Second
}

// forget deletes the record of an instance that has terminated.
func (m *machine) forget() {
	if !m.rec.Terminated {
		return
	}
	if err := m.d.store.Delete(m.uid); err != nil {
		m.log.Error("deleting a record failed", "err", err)
		return
	}
	m.gone, m.dirty = true, false
	m.d.remove(m)
}

// save makes the record durable if it has changed.
func (m *machine) save() {
	if !m.dirty {
		return
	}
	if err := m.d.store.Put(m.rec); err != nil {
		m.log.Error("saving a record failed", "err", err)
		return
	}
	m.dirty = false
}

// snapshot returns a copy of the record that another goroutine may read.
func (m *machine) snapshot() state.Record {
	r := m.rec
	r.Containers = maps.Clone(r.Containers)
	return r
}

func (m *machine) setContainer(name string, c state.Container) {
	m.rec.Containers[name] = c
	m.dirty = true
}

// connected stores the connection to the supervisor. From then on, sessions can find the
// instance.
func (m *machine) connected(c *shim.Client) {
	m.shim = c
	m.setSupervisor(c.PID())
}

// attach stores the connection to the supervisor and handles the events from it.
func (m *machine) attach(c *shim.Client) {
	m.connected(c)
	m.tasks.Go(func() {
		for exit := range c.Exits() {
			m.post(func() { m.exited(exit) })
		}
		m.post(func() { m.lost(c) })
	})
}

// disconnect closes the connection to the supervisor.
func (m *machine) disconnect() {
	if m.shim == nil {
		return
	}
	if err := m.shim.Close(); err != nil && !errors.Is(err, context.Canceled) {
		m.log.Debug("closing the connection to the supervisor", "err", err)
	}
	m.shim = nil
	m.setSupervisor(0)
}

// lost is called when a connection to a supervisor has ended. Unless this process closed it, the
// supervisor is gone, and the state of its containers is no longer known.
func (m *machine) lost(c *shim.Client) {
	if m.shim != c || m.runCtx.Err() != nil {
		return
	}
	m.disconnect()
	if m.rec.Stop != nil || m.rec.Final != nil {
		m.prepared, m.leftovers, m.attachment, m.rec.Suspended = false, true, nil, false
		return
	}
	m.log.Warn("the supervisor ended")
	m.endLostSandbox(reasonSupervisorLost, supervisorEnded)
}

// supervisorEnded is the message of containers that ended with their supervisor.
const supervisorEnded = "the supervisor of the instance ended"

// engineRunning returns what engines need to reach the instance's processes. Any goroutine may call
// it.
func (m *machine) engineRunning() engine.Running {
	pid, address := m.place()
	return engine.Running{Instance: m.in, PID: pid, Address: address}
}
