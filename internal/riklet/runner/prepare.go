package runner

import (
	"context"
	"errors"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/progress"
	"rik.dev/rik/internal/riklet/runner/engine"
)

// preparation is the state of a machine whose instance is prepared.
type preparation struct {
	prepared  bool // the directories, the volumes and the supervisor exist
	leftovers bool // something may remain from an earlier run; undo it first
	prepare   attempts
	reason    string // the reason of a preparation trouble
	pulling   string // progress of a slow image pull that is part of the preparation
}

// prepareStep creates what all containers of the instance share. Meanwhile the record becomes
// durable, before any container starts.
func (m *machine) prepareStep() time.Time {
	if m.prepare.active {
		return time.Time{}
	}
	if m.prepare.retryAt.After(m.now()) {
		return m.prepare.retryAt
	}
	if why := m.d.networkReady(m.in.Template); why != nil && !m.leftovers {
		m.waitForNetwork(why)
		return m.prepare.retryAt
	}
	m.prepare.active = true
	m.pulling = ""
	b := &build{d: m.d, clean: !m.leftovers, Sandbox: engine.Sandbox{Instance: m.in, Report: func(p progress.Progress) {
		m.post(func() {
			if m.prepare.active {
				m.pulling = p.String()
			}
		})
	}}}
	if m.rec.OnDisk {
		b.Restore, b.Kept = true, m.kept()
	}
	rec, leftovers := m.snapshot(), m.leftovers
	m.dirty = false
	m.startTask(func(ctx context.Context) func() {
		err := b.run(ctx, leftovers, func() error { return m.d.store.Put(rec) })
		return func() { m.preparedWith(b, err) }
	})
	return time.Time{}
}

func (m *machine) preparedWith(b *build, err error) {
	m.prepare.active, m.pulling = false, ""
	if b.Supervisor != nil && err != nil {
		_ = b.Supervisor.Close() // Undo removes the supervisor
	}
	if err == nil {
		m.disconnect()
		m.attach(b.Supervisor)
		m.prepared, m.leftovers, m.prepare, m.trouble, m.reason = true, false, attempts{}, "", ""
		m.attachment = b.Attachment
		m.ranWith(b.Disk, b.DiskWhy)
		if b.Restore {
			m.resumedFromDisk(b)
		}
		return
	}
	m.leftovers = !b.clean
	if b.Restore {
		m.notRestored(err)
		return
	}
	if m.startCtx.Err() != nil {
		return
	}
	if errors.Is(err, instance.ErrNetworkNotReady) {
		m.waitForNetwork(err)
		return
	}
	m.prepare.failed(m.now(), maxRestartDelay)
	m.trouble, m.reason = err.Error(), m.prepareReason(err)
	m.log.Warn("preparing an instance failed", "step", lifecycle.StepOf(err), "err", err)
	if m.in.Template.RestartPolicy == rikv1alpha1.RestartNever || m.permanent(err) {
		m.finish(outcome{rikv1alpha1.InstanceFailed, m.reason, err.Error()})
	}
}

// prepareReason returns the status reason for a failed preparation.
func (m *machine) prepareReason(err error) string {
	_, config := errors.AsType[*engine.ConfigError](err)
	switch {
	case config:
		return reasonConfig
	case lifecycle.StepOf(err) == stepImage && m.permanent(err):
		return reasonInvalidImage
	case lifecycle.StepOf(err) == stepImage:
		return reasonImagePull
	default:
		return reasonPrepare
	}
}

// build creates what the containers of an instance share.
type build struct {
	engine.Sandbox
	d     *Driver
	clean bool // nothing remains from an earlier run
}

func (b *build) run(ctx context.Context, leftovers bool, save func() error) error {
	defer b.End()
	if leftovers {
		// What was learned about the last run must be durable before its traces are removed.
		if err := save(); err != nil {
			return err
		}
		what := processes
		if b.Restore {
			what = allButSnapshot
		}
		if err := b.d.tearDown(ctx, b.Instance, what); err != nil {
			return err
		}
		b.clean = true
		if err := b.d.networkReady(b.Instance.Template); err != nil {
			return err
		}
	}
	b.clean = false
	saved := make(chan error, 1)
	go func() { saved <- save() }()
	err := b.sequence(true).Do(ctx)
	return errors.Join(err, <-saved)
}
