package runner

import (
	"context"
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
	maxUnanswered         = 3
	// retryDivisor divides the interval of the health check after a check without an answer.
	retryDivisor = 6
)

// checks is the state of the regular checks of a machine.
type checks struct {
	refreshed  time.Time // when object volumes were last checked
	refreshing bool
	oomAt      time.Time // when the counters of OOM kills were last read
	askedAt    time.Time // when its health was last checked
	asking     bool
	unanswered int // how many consecutive health checks got no answer
}

// healthDue checks the instance's health when it is due, and returns when it is due again. An
// instance that does not run is not checked.
func (m *machine) healthDue() time.Time {
	if m.engine == nil || m.engine.Health == nil || m.asking {
		return time.Time{}
	}
	if m.askedAt.IsZero() {
		m.askedAt = m.now()
	}
	pause := m.d.cfg.HealthInterval
	if m.unanswered > 0 {
		pause /= retryDivisor
	}
	if due := m.askedAt.Add(pause); m.now().Before(due) {
		return due
	}
	m.asking = true
	client, health := m.shim, m.engine.Health
	m.startTask(func(ctx context.Context) func() {
		asking, cancel := context.WithTimeout(ctx, m.d.cfg.HealthTimeout)
		defer cancel()
		err := health.Answers(asking, m.uid)
		return func() {
			m.asking, m.askedAt = false, m.now()
			m.answered(client, err)
		}
	})
	return time.Time{}
}

// answered handles the result of a health check. A failure does not count if the instance was
// paused meanwhile, or if it now has another machine.
func (m *machine) answered(client *shim.Client, err error) {
	if err == nil || m.startCtx.Err() != nil || m.shim != client || !m.prepared || m.rec.Suspended || m.holding {
		m.unanswered = 0
		return
	}
	m.unanswered++
	m.log.Warn("a guest does not answer", "err", err, "times", m.unanswered)
	if m.unanswered < maxUnanswered {
		return
	}
	m.unanswered = 0
	m.log.Warn("a guest has not answered several times; its VMM is killed")
	ctx, health := m.runCtx, m.engine.Health
	m.task(func() func() {
		if err := health.Kill(ctx, client); err != nil && ctx.Err() == nil {
			m.log.Warn("killing a VMM failed", "err", err)
		}
		return nil
	})
}
