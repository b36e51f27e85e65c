package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
)

// To suspend an instance to disk, the riklet suspends it in memory, writes that memory to disk,
// and then removes everything else that the instance has on the node. Each step is durable before
// the next one. If the riklet ends between two steps, the instance is suspended, in memory or on
// disk. An instance on disk needs only the disk.

// errCannotSuspend is returned for instances that are not microVMs.
var errCannotSuspend = fmt.Errorf("%w: only microVMs can be suspended to disk; suspend the instance in memory", errors.ErrUnsupported)

// suspendToDisk begins to suspend the instance to disk, in another goroutine.
func (m *machine) suspendToDisk(done func(error)) {
	snapshots := m.snapshots()
	running, err := m.holdable()
	switch {
	case m.rec.OnDisk && m.restoring == nil:
		done(nil)
		return
	case snapshots == nil:
		err = errCannotSuspend
	case m.holding, m.restoring != nil:
		err = errHolding
	}
	if err != nil {
		done(err)
		return
	}
	m.holding = true
	m.endProbes()
	o := &diskSuspension{snapshots: snapshots, running: running, held: m.rec.Suspended, done: done}
	ctx := m.runCtx
	m.task(func() func() {
		err := snapshots.Settle(ctx, m.uid)
		return func() { m.settled(o, err) }
	})
}

// snapshots returns how the instance is suspended to disk, or nil if its kind cannot be.
func (m *machine) snapshots() engine.Snapshots {
	if m.engine == nil {
		return nil
	}
	return m.engine.Snapshots
}

// diskSuspension is an order to suspend to disk.
type diskSuspension struct {
	snapshots engine.Snapshots
	running   []string
	held      bool // it was already suspended
	done      func(error)
}

// settled handles the end of the first part: the instance is suspended in memory.
func (m *machine) settled(o *diskSuspension, err error) {
	if err != nil {
		m.notParked(o, err)
		return
	}
	m.rec.Suspended, m.dirty = true, true
	m.save()
	ctx := m.runCtx
	m.task(func() func() {
		err := o.snapshots.Write(ctx, m.uid)
		return func() { m.written(o, err) }
	})
}

// written handles the end of the second part. Once OnDisk is durable, the state in memory no
// longer counts.
func (m *machine) written(o *diskSuspension, err error) {
	if err != nil {
		m.notParked(o, err)
		return
	}
	m.rec.OnDisk, m.dirty = true, true
	if m.save(); m.dirty {
		m.rec.OnDisk = false
		m.notParked(o, errors.New("the node could not save that the instance is on its disk"))
		return
	}
	m.log.Info("instance is suspended to disk")
	m.holding, m.prepared, m.leftovers, m.attachment = false, false, true, nil
	m.disconnect()
	m.publish()
	o.done(nil)
}

// notParked restores the instance's former state after a failed suspension.
func (m *machine) notParked(o *diskSuspension, err error) {
	ctx := m.runCtx
	if ctx.Err() != nil { // the next riklet process continues with it
		m.holding = false
		o.done(err)
		return
	}
	m.task(func() func() {
		back := m.engine.Hold(ctx, m.in, o.running, o.held)
		return func() {
			m.holding = false
			if back != nil && ctx.Err() == nil {
				m.log.Warn("an instance that could not be suspended to disk stays paused", "err", back)
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

// suspendStep removes everything that an instance on disk still has on the node.
func (m *machine) suspendStep() time.Time {
	if !m.leftovers || m.diskCleanup.active {
		return time.Time{}
	}
	if m.diskCleanup.retryAt.After(m.now()) {
		return m.diskCleanup.retryAt
	}
	m.diskCleanup.active = true
	m.startTask(func(ctx context.Context) func() {
		err := m.d.tearDown(ctx, m.in, allButSnapshot)
		return func() {
			if err != nil {
				m.diskCleanup.failed(m.now(), maxTeardownDelay)
				if ctx.Err() == nil {
					m.log.Warn("removing the processes of an instance on disk failed; it is tried again", "err", err)
				}
				return
			}
			m.diskCleanup, m.leftovers = attempts{}, false
		}
	})
	return time.Time{}
}

// resumeFromDisk begins to resume an instance from disk.
func (m *machine) resumeFromDisk(done func(error)) {
	err := m.engine.Validate(m.in.Template)
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

// restored sends the result to the caller of Resume, if it still waits.
func (m *machine) restored(err error) {
	if done := m.restoring; done != nil {
		m.restoring = nil
		m.publish()
		done(err)
	}
}

// kept lists the containers that are in a snapshot of the instance.
func (m *machine) kept() []engine.KeptRun {
	var runs []engine.KeptRun
	for _, c := range m.containers {
		if s := m.rec.Containers[c.spec.Name]; s.State == rikv1alpha1.ContainerRunning {
			runs = append(runs, engine.KeptRun{
				Container: c.spec, Index: c.index, Attempt: s.Attempt, Note: engine.ImageNote{Digest: s.ImageDigest, StopSignal: s.StopSignal},
			})
		}
	}
	return runs
}

// resumedFromDisk handles the success of a resume from disk.
func (m *machine) resumedFromDisk(b *build) {
	m.rec.Suspended, m.rec.OnDisk, m.dirty = false, false, true
	for _, r := range b.Kept {
		if r.Lost != "" {
			name := r.Container.Name
			m.setContainer(name, exited(m.rec.Containers[name], 128+9, reasonVMEnded, r.Lost, m.now()))
		}
	}
	m.save()
	m.log.Info("instance resumed from disk")
	m.probeAgain()
	m.restored(nil)
}

// notRestored handles the failure of a resume from disk. A defect of the snapshot is permanent.
// After any other failure the instance stays on disk and can be resumed later.
func (m *machine) notRestored(err error) {
	damaged, lost := errors.AsType[*engine.SnapshotError](err)
	switch {
	case errors.Is(err, instance.ErrNetworkNotReady) && m.startCtx.Err() == nil:
		m.waitForNetwork(err)
		return
	case lost && m.startCtx.Err() == nil:
		m.handleLostSnapshot(damaged.Error())
		err = fmt.Errorf("%w: the instance starts again: %w", instance.ErrLost, damaged)
	default:
		m.leftovers = true // it stays on disk, with nothing in memory
	}
	m.prepare = attempts{}
	m.restored(err)
}

// handleLostSnapshot discards the snapshot. The instance is started again, as its restart policy
// allows.
func (m *machine) handleLostSnapshot(why string) {
	m.log.Warn("a snapshot cannot be used; the instance starts again", "why", why)
	m.rec.OnDisk = false
	m.endLostSandbox(reasonSnapshotLost, why)
}

// recoverOnDisk finds out what happened to an instance on disk. It returns true if the recovery
// is complete, and false if the instance was resumed and has a supervisor.
func (m *machine) recoverOnDisk(whole bool) bool {
	switch {
	case m.snapshots() != nil && m.snapshots().Exists(m.uid):
		m.leftovers, m.rec.BootID = true, m.d.bootID
	case whole:
		m.rec.Suspended, m.rec.OnDisk, m.dirty = false, false, true
		return false
	default:
		m.handleLostSnapshot("the riklet or the node ended while the instance was being resumed")
		m.rec = afterReboot(m.rec, m.d.bootID, m.now())
	}
	m.dirty = true
	return true
}

// onDiskMessage is the status message of an instance on disk.
const onDiskMessage = "its memory is on the node's disk; rikctl resume continues it"

// dropRestoring reports to the caller of Resume that the instance ends instead.
func (m *machine) dropRestoring() {
	if !m.prepare.active {
		m.restored(errStopped)
	}
}
