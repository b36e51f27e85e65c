package runner

import (
	"context"
	"errors"
	"syscall"
	"time"

	"rik.dev/rik/internal/riklet/shim"
)

// A guest can fall silent without an end of any process that the node sees: its kernel
// waits for ever, or nobody in it serves the channel. So its init is asked every minute,
// and a guest that says nothing three times in a row is ended: its instance is made anew
// then, as after any other end of its VMM.
const (
	defaultHealthInterval = time.Minute
	defaultHealthTimeout  = 30 * time.Second
	silencesMost          = 3
	// After a silence it is asked again so many times sooner.
	soonerAgain = 6
)

// watcher is an engine whose instances can fall silent.
type watcher interface {
	// answers asks an instance, and returns when it has answered anything at all:
	// an error is its silence, or ctx's end.
	answers(ctx context.Context, uid string) error
	// kill ends what is silent.
	kill(ctx context.Context, client *shim.Client) error
}

// healthDue asks the instance when it is time, and says when it is time again. What does
// not run is not asked.
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

// answered takes what came of it. Whatever was held meanwhile, or is another machine by
// now, had no chance to answer.
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

// answers: only silence counts. A guest that refuses, or has too much to do for one
// question more, is there.
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

// endIfStill ends the VMM of a guest that answers nothing after a start has failed: the
// machine is then made anew, and another attempt finds one that works.
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
