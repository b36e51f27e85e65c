// Package outage tells clients of the API when the datastore cannot be reached. Without it a
// request waits for a minute, and ends with an error that has the datastore's address and user
// in it, and does not say what is wrong.
//
// [Monitor] asks the datastore now and then. While it does not answer, [Monitor.Wrap] answers
// requests for objects with 503 and Retry-After, and ends those that wait. An answer with an
// internal error of the datastore's client is replaced by the same.
package outage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// interval is the pause between two probes.
	interval = 3 * time.Second
	// timeout is how long a probe waits. An etcd cluster elects a leader in less.
	timeout = 5 * time.Second
	// failuresAtLeast in a row are an outage: a restart of the datastore's connection is none.
	failuresAtLeast = 2
	// logInterval is how often an outage is logged while it lasts.
	logInterval = time.Minute
)

// errUnreachable is why requests that wait are ended.
var errUnreachable = errors.New("the datastore is unreachable")

// Config of a Monitor.
type Config struct {
	// Probe asks the datastore for anything that only a working one can answer. Required.
	Probe func(context.Context) error
	// Datastore describes it for the administrator's log. Clients are not told.
	Datastore string
	// Logger is required.
	Logger *slog.Logger
}

// Monitor knows whether the datastore answers. Its methods may be called from any goroutine.
type Monitor struct {
	cfg Config
	now func() time.Time

	mu       sync.Mutex
	failures int
	since    time.Time // of the first of the failures
	logged   time.Time
	waiting  map[int]context.CancelCauseFunc // requests under way
	next     int
}

// New makes a monitor, which takes the datastore for reachable until Run finds otherwise.
func New(cfg Config) *Monitor {
	return &Monitor{cfg: cfg, now: time.Now, waiting: map[int]context.CancelCauseFunc{}}
}

// Run probes until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		err := m.probe(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end, and no outage
		}
		m.note(err)
	}
}

func (m *Monitor) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer in %s", timeout))
	defer cancel()
	err := m.cfg.Probe(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// note takes the result of a probe.
func (m *Monitor) note(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if err == nil {
		if m.failures >= failuresAtLeast {
			m.cfg.Logger.Info("the datastore answers again", "datastore", m.cfg.Datastore, "outage", now.Sub(m.since).Round(time.Second))
		}
		m.failures, m.logged = 0, time.Time{}
		return
	}
	if m.failures++; m.failures == 1 {
		m.since = now
	}
	if m.failures < failuresAtLeast {
		return
	}
	if now.Sub(m.logged) >= logInterval {
		m.logged = now
		m.cfg.Logger.Error("the datastore does not answer: requests get 503 until it does, and instances go on",
			"datastore", m.cfg.Datastore, "since", m.since, "err", err)
	}
	for id, cancel := range m.waiting {
		cancel(errUnreachable)
		delete(m.waiting, id)
	}
}

// outage says since when the datastore has not answered.
func (m *Monitor) outage() (since time.Time, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.since, m.failures >= failuresAtLeast
}

// follow returns a context that ends with the next outage. done must be called.
func (m *Monitor) follow(ctx context.Context) (follower context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	id := m.next
	m.next++
	m.waiting[id] = cancel
	return ctx, func() {
		m.mu.Lock()
		delete(m.waiting, id)
		m.mu.Unlock()
		cancel(nil)
	}
}
