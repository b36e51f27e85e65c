package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/state"
)

// To suspend an instance to disk is to suspend it in memory, to write that memory down,
// and to take back all else that it has on the node. Each step is durable before the
// next: an agent that dies between two leaves an instance that is suspended, in memory
// or on disk, and one on disk needs nothing but the disk.

// parker is an engine whose instances can be written to disk.
type parker interface {
	// settle pauses a machine so that its containers can change their session. It may
	// be paused already.
	settle(ctx context.Context, m *machine) error
	// write writes a settled machine down. It stays as it is.
	write(ctx context.Context, m *machine) error
}

// errNotParkable is returned for containers and processes.
var errNotParkable = fmt.Errorf("%w: only microVMs can be suspended to disk; suspend it in memory", errors.ErrUnsupported)

// park begins to suspend to disk, beside the owner.
func (m *machine) park(done func(error)) {
	p, able := m.engine.(parker)
	running, err := m.holdable()
	switch {
	case m.rec.OnDisk && m.restoring == nil:
		done(nil)
		return
	case !able:
		err = errNotParkable
	case m.holding, m.restoring != nil:
		err = errHolding
	}
	if err != nil {
		done(err)
		return
	}
	m.holding = true
	m.endProbes()
	o := &parking{parker: p, running: running, held: m.rec.Suspended, done: done}
	ctx := m.runCtx
	m.task(func() func() {
		err := p.settle(ctx, m)
		return func() { m.settled(o, err) }
	})
}

// parking is an order to suspend to disk.
type parking struct {
	parker
	running []string
	held    bool // it was suspended before
	done    func(error)
}

// settled takes the end of the first part: it is suspended in memory.
func (m *machine) settled(o *parking, err error) {
	if err != nil {
		m.notParked(o, err)
		return
	}
	m.rec.Suspended, m.dirty = true, true
	m.save()
	ctx := m.runCtx
	m.task(func() func() {
		err := o.write(ctx, m)
		return func() { m.written(o, err) }
	})
}

// written takes the end of the second: once that is durable, nothing in memory counts.
func (m *machine) written(o *parking, err error) {
	if err != nil {
		m.notParked(o, err)
		return
	}
	m.rec.OnDisk, m.dirty = true, true
	if m.save(); m.dirty {
		m.rec.OnDisk = false
		m.notParked(o, errors.New("the node could not write down that the instance is on its disk"))
		return
	}
	m.log.Info("instance is suspended to disk")
	m.holding, m.prepared, m.leftovers, m.attachment = false, false, true, nil
	m.hangUp()
	m.publish()
	o.done(nil)
}

// notParked makes the instance what it was.
func (m *machine) notParked(o *parking, err error) {
	ctx := m.runCtx
	if ctx.Err() != nil { // another agent goes on with it
		m.holding = false
		o.done(err)
		return
	}
	m.task(func() func() {
		back := m.engine.hold(ctx, m, o.running, o.held)
		return func() {
			m.holding = false
			if back != nil && ctx.Err() == nil {
				m.log.Warn("an instance that could not be suspended to disk stands still", "err", back)
				err = fmt.Errorf("%w; it is suspended in memory: %w", err, back)
			}
			m.rec.Suspended, m.dirty = o.held || back != nil, true
			m.save()
			m.probeAgain()
			m.publish()
			o.done(err)
		}
	})
}

// parkStep takes back what an instance on disk has besides.
func (m *machine) parkStep() time.Time {
	if !m.leftovers || m.parked.active {
		return time.Time{}
	}
	if m.parked.retryAt.After(m.now()) {
		return m.parked.retryAt
	}
	m.parked.active = true
	m.starts++
	ctx, in := m.startCtx, m.rec.Instance
	m.task(func() func() {
		err := m.d.takeBack(ctx, in, allButSnapshot)
		return func() {
			m.starts--
			if err != nil {
				m.parked.failed(m.now(), longestTeardownDelay)
				if ctx.Err() == nil {
					m.log.Warn("what an instance on disk had in memory could not be taken back; it is tried again", "err", err)
				}
				return
			}
			m.parked, m.leftovers = attempts{}, false
		}
	})
	return time.Time{}
}

// unpark begins to let an instance go on from the disk.
func (m *machine) unpark(done func(error)) {
	err := m.engine.validate(m.rec.Instance.Template)
	switch {
	case m.restoring != nil:
		err = errHolding
	case m.rec.Stop != nil || m.rec.Final != nil || m.rec.Terminated:
		err = instance.ErrNotRunning
	}
	if err != nil {
		done(err)
		return
	}
	m.restoring, m.prepare = done, attempts{}
}

// restored answers who asked to resume, if anybody still does.
func (m *machine) restored(err error) {
	if done := m.restoring; done != nil {
		m.restoring = nil
		m.publish()
		done(err)
	}
}

// kept lists the containers that a snapshot of the instance has.
func (m *machine) kept() []keptRun {
	var runs []keptRun
	for _, c := range m.containers {
		if s := m.rec.Containers[c.spec.Name]; s.State == rikv1alpha1.ContainerRunning {
			runs = append(runs, keptRun{container: c.spec, index: c.index, Container: s})
		}
	}
	return runs
}

// keptRun is a run that is to go on.
type keptRun struct {
	container rikv1alpha1.Container
	index     int
	state.Container
	lost string // why it does not
}

// goesOn takes the end of a restoration.
func (m *machine) goesOn(b *build) {
	m.rec.Suspended, m.rec.OnDisk, m.dirty = false, false, true
	for _, r := range b.kept {
		if r.lost != "" {
			m.setContainer(r.container.Name, exited(r.Container, 128+9, reasonVMEnded, r.lost, m.now()))
		}
	}
	m.save()
	m.log.Info("instance goes on from the disk")
	m.probeAgain()
	m.restored(nil)
}

// notRestored takes the failure of one. What is wrong with the snapshot itself stays
// wrong; for all else the instance can be resumed another time.
func (m *machine) notRestored(err error) {
	unsound, lost := errors.AsType[*snapshotError](err)
	switch {
	case errors.Is(err, instance.ErrNetworkNotReady) && m.startCtx.Err() == nil:
		m.waitForNetwork(err)
		return
	case lost && m.startCtx.Err() == nil:
		m.loseSnapshot(unsound.Error())
		err = fmt.Errorf("%w: the instance is made anew: %w", instance.ErrLost, unsound)
	default:
		m.leftovers = true // it stays on disk, with nothing in memory
	}
	m.prepare = attempts{}
	m.restored(err)
}

// loseSnapshot gives up what is on disk: the instance is made anew, as its restart
// policy has it.
func (m *machine) loseSnapshot(why string) {
	m.log.Warn("a snapshot cannot be used; the instance is made anew", "why", why)
	m.rec.OnDisk = false
	m.loseSandbox(reasonSnapshotLost, why)
}

// recoverParked finds out what became of an instance on disk, and reports whether that
// was all: else it is resumed, and there is a supervisor.
func (m *machine) recoverParked(whole bool) bool {
	switch {
	case m.d.hasSnapshot(m.uid):
		m.leftovers, m.rec.BootID = true, m.d.bootID
	case whole:
		m.rec.Suspended, m.rec.OnDisk, m.dirty = false, false, true
		return false
	default:
		m.loseSnapshot("the riklet ended, or its machine, while the instance was being resumed")
		m.rec = afterReboot(m.rec, m.d.bootID, m.now())
	}
	m.dirty = true
	return true
}

// onDiskMessage is what the status says of one.
const onDiskMessage = "its memory is on the node's disk; rikctl resume lets it go on"

// dropRestoring tells who waits for an instance that it ends instead.
func (m *machine) dropRestoring() {
	if !m.prepare.active {
		m.restored(errStopped)
	}
}
