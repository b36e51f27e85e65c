// Package outage informs API clients when the datastore cannot be reached. Without it a request
// waits for a minute. It then ends with an error that contains the datastore's address and
// user, and does not state the cause.
//
// [Monitor] probes the datastore at intervals. While the datastore does not respond,
// [Monitor.Wrap] answers requests for objects with 503 and Retry-After, and ends waiting
// requests. It also replaces a response that contains an internal error of the datastore's
// client.
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
	// timeout is the timeout of a probe. An etcd cluster elects a leader in less time.
	timeout = 5 * time.Second
	// failuresAtLeast is the number of consecutive failures that count as an outage. A restart of
	// the datastore's connection causes fewer.
	failuresAtLeast = 2
	// logInterval is the interval of log messages during an outage.
	logInterval = time.Minute
)

// errUnreachable is the cause with which waiting requests are ended.
var errUnreachable = errors.New("the datastore is unreachable")

// Config configures a Monitor.
type Config struct {
	// Probe sends a request that only a working datastore can answer. Required.
	Probe func(context.Context) error
	// Datastore describes the datastore in the administrator's log. Clients do not receive it.
	Datastore string
	// Logger is required.
	Logger *slog.Logger
}

// Monitor detects whether the datastore responds. Its methods are safe for concurrent use.
type Monitor struct {
	cfg Config
	now func() time.Time

	mu       sync.Mutex
	failures int
	since    time.Time // of the first failure
	logged   time.Time
	waiting  map[int]context.CancelCauseFunc // requests in flight
	next     int
}

// New creates a monitor, which treats the datastore as reachable until Run detects an outage.
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
			return nil
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

// note records the result of a probe.
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
		m.cfg.Logger.Error("the datastore does not answer: requests get status 503 until it does, and instances continue to run",
			"datastore", m.cfg.Datastore, "since", m.since, "err", err)
	}
	for id, cancel := range m.waiting {
		cancel(errUnreachable)
		delete(m.waiting, id)
	}
}

// outage returns since when the datastore has not responded. ok is false if there is no outage.
func (m *Monitor) outage() (since time.Time, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.since, m.failures >= failuresAtLeast
}

// follow returns a context that ends with the next outage. The caller must call done.
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
