package runner

import (
	"context"
	"errors"
	"syscall"
	"time"

	"rik.dev/rik/internal/riklet/shim"
)

// A guest can hang while all its processes on the node still run: its kernel may be stuck, or no
// process in it serves the channel. So the riklet checks the guest init every minute. If a guest
// does not answer three times in a row, the riklet ends its VMM, and the instance is started
// again as after any other end of its VMM.
const (
	defaultHealthInterval = time.Minute
	defaultHealthTimeout  = 30 * time.Second
	silencesMost          = 3
	// soonerAgain divides the interval of the health check after a check without an answer.
	soonerAgain = 6
)

// watcher is an engine whose instances can hang.
type watcher interface {
	// answers checks an instance. It returns nil if the instance answered at all, even with an
	// error. An error means that it did not answer before ctx ended.
	answers(ctx context.Context, uid string) error
	// kill ends an instance that does not answer.
	kill(ctx context.Context, client *shim.Client) error
}

// healthDue checks the instance's health when it is due, and returns when it is due again. An
// instance that does not run is not checked.
func (m *machine) healthDue() time.Time {
	w, able := m.engine.(watcher)
	if !able || m.asking {
		return time.Time{}
	}
	if m.askedAt.IsZero() {
		m.askedAt = m.now()
	}
	pause := m.d.cfg.HealthInterval
	if m.silences > 0 {
		pause /= soonerAgain
	}
	if due := m.askedAt.Add(pause); m.now().Before(due) {
		return due
	}
	m.asking = true
	m.starts++
	ctx, client := m.startCtx, m.shim
	m.task(func() func() {
		asking, cancel := context.WithTimeout(ctx, m.d.cfg.HealthTimeout)
		defer cancel()
		err := w.answers(asking, m.uid)
		return func() {
			m.starts--
			m.asking, m.askedAt = false, m.now()
			m.answered(w, client, err)
		}
	})
	return time.Time{}
}

// answered handles the result of a health check. A failure does not count if the instance was
// paused meanwhile, or if it now has another machine.
func (m *machine) answered(w watcher, client *shim.Client, err error) {
	if err == nil || m.startCtx.Err() != nil || m.shim != client || !m.prepared || m.rec.Suspended || m.holding {
		m.silences = 0
		return
	}
	m.silences++
	m.log.Warn("a guest does not answer", "err", err, "times", m.silences)
	if m.silences < silencesMost {
		return
	}
	m.silences = 0
	m.log.Warn("a guest has fallen silent; its VMM is ended")
	ctx := m.runCtx
	m.task(func() func() {
		if err := w.kill(ctx, client); err != nil && ctx.Err() == nil {
			m.log.Warn("a VMM could not be ended", "err", err)
		}
		return nil
	})
}

// answers returns an error only if the guest is silent. A guest that returns an error, or is too
// busy for another request, still works.
func (e vmEngine) answers(ctx context.Context, uid string) error {
	if err := e.d.guest(uid).Health(ctx); ctx.Err() != nil {
		return err
	}
	return nil
}

func (vmEngine) kill(ctx context.Context, client *shim.Client) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := client.Signal(ctx, vmmContainer, syscall.SIGKILL); !errors.Is(err, shim.ErrGone) {
		return err
	}
	return nil
}

// endIfStill ends the VMM of a guest that does not answer after a start has failed. The machine
// is then replaced, and the next attempt uses a machine that works.
func (f *vmFill) endIfStill(ctx context.Context, timeout time.Duration) {
	ctx = context.WithoutCancel(ctx)
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if f.d.guest(f.in.UID).Health(asking) == nil {
		return
	}
	f.d.cfg.Logger.Warn("a guest does not answer; its VMM is ended", "instance", f.in.UID)
	if err := (vmEngine{f.d}).kill(ctx, f.shim); err != nil {
		f.d.cfg.Logger.Warn("a VMM could not be ended", "instance", f.in.UID, "err", err)
	}
}
