// Package monitor is the Node Monitor: what the node is and has, and, every
// few seconds, what it and its instances use. It tells that in the JSON shapes
// of the papers. It also watches the disk: one that is nearly full is told to
// the scheduler, and images that nobody uses are collected.
package monitor

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
)

const (
	// DefaultInterval is the papers'.
	DefaultInterval = 15 * time.Second
	// pressureHigh and pressureLow are in percent of the disk. The distance keeps
	// a node from changing its mind with every log line.
	pressureHigh = 90
	pressureLow  = 85
	// evictHigh is when even the removal of images did not help: an instance has to go.
	evictHigh = 95
	// collectInterval is for what merely grew old; under pressure it is more often.
	collectInterval   = 10 * time.Minute
	collectUnderPress = time.Minute
)

// Instance is one that is measured.
type Instance struct {
	UID, Name, Workload string
	// Source is an image or where else the process comes from; Version may be
	// part of it.
	Source, Version string
	Phase           rikv1alpha1.InstancePhase
	Address         string
	Usage           instance.Usage // zero for one that does not run
}

// Config of a [Monitor]. Node, Path, Read, Instances and Report are required.
type Config struct {
	Node string
	// Path lies on the disk that is watched.
	Path string
	// Interval is DefaultInterval when 0.
	Interval time.Duration
	// Read measures the node.
	Read func(ctx context.Context) (Reading, error)
	// Instances measures the instances.
	Instances func() []Instance
	// Report takes the texts: of the node, and of each instance by UID.
	Report func(node string, instances map[string]string)
	// Collect removes unused images; pressure asks for all that it can. Nil: the
	// node keeps none.
	Collect func(ctx context.Context, pressure bool) (freedBytes int64, err error)
	// DiskUsed is the share of the watched disk that is used, in percent. Required with Evict.
	DiskUsed func(ctx context.Context) (percent float64, err error)
	// Evict ends an instance that fills the disk; "" when none does. Nil: nothing can.
	Evict  func(ctx context.Context) (uid string, err error)
	Logger *slog.Logger // nil discards
}

// Monitor measures until its Run ends.
type Monitor struct {
	cfg  Config
	last map[string]instance.Usage // of Run's goroutine

	mu        sync.Mutex
	pressure  bool
	node      string
	instances map[string]string
}

// New returns a monitor that has not begun.
func New(cfg Config) *Monitor {
	if cfg.Interval <= 0 {
		cfg.Interval = DefaultInterval
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Monitor{cfg: cfg, last: map[string]instance.Usage{}}
}

// DiskPressure says whether the disk is nearly full.
func (m *Monitor) DiskPressure() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pressure
}

// Latest gives the last texts; empty before the first measurement. The caller
// must not change the map.
func (m *Monitor) Latest() (node string, instances map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node, m.instances
}

// Run measures at once and at every interval until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		m.measuring(ctx)
		return nil
	})
	if m.cfg.Evict != nil {
		group.Go(func() error {
			m.evicting(ctx)
			return nil
		})
	}
	if m.cfg.Collect != nil {
		group.Go(func() error {
			m.collecting(ctx)
			return nil
		})
	}
	return group.Wait()
}

func (m *Monitor) measuring(ctx context.Context) {
	ticker := time.NewTicker(m.cfg.Interval)
	defer ticker.Stop()
	for {
		m.measure(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// measure takes one reading and tells of it.
func (m *Monitor) measure(ctx context.Context) {
	reading, err := m.cfg.Read(ctx)
	if err != nil {
		if ctx.Err() == nil {
			m.cfg.Logger.Warn("node was not measured", "err", err)
		}
		return
	}
	texts := map[string]string{}
	usages := map[string]instance.Usage{}
	for _, in := range m.cfg.Instances() {
		texts[in.UID] = text(App(m.cfg.Node, in, cpuMillis(m.last[in.UID], in.Usage)))
		usages[in.UID] = in.Usage
	}
	m.last = usages
	node := text(Usage(m.cfg.Node, reading))
	m.mu.Lock()
	pressed := pressed(m.pressure, reading.WatchedUsedPercent)
	changed := pressed != m.pressure
	m.pressure, m.node, m.instances = pressed, node, texts
	m.mu.Unlock()
	if changed {
		m.cfg.Logger.Warn("disk pressure changed", "pressure", pressed, "usedPercent", reading.WatchedUsedPercent)
	}
	m.cfg.Report(node, texts)
}

// pressed decides with a memory of what it decided before.
func pressed(before bool, usedPercent float64) bool {
	if before {
		return usedPercent > pressureLow
	}
	return usedPercent >= pressureHigh
}

// cpuMillis is the load between two measurements, or since the start at the
// first one; 0 for a process that was started anew in between.
func cpuMillis(before, now instance.Usage) int64 {
	if before.At.IsZero() {
		before = instance.Usage{At: now.StartedAt}
	}
	elapsed := now.At.Sub(before.At)
	if before.At.IsZero() || elapsed <= 0 || now.CPUNanos < before.CPUNanos {
		return 0
	}
	return int64(now.CPUNanos-before.CPUNanos) * 1000 / int64(elapsed)
}

// collecting looks every so often whether images can go.
func (m *Monitor) collecting(ctx context.Context) {
	ticker := time.NewTicker(collectUnderPress)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			pressure := m.DiskPressure()
			if !pressure && now.Sub(last) < collectInterval {
				continue
			}
			last = now
			freed, err := m.cfg.Collect(ctx, pressure)
			if err != nil && ctx.Err() == nil {
				m.cfg.Logger.Warn("images were not collected", "pressure", pressure, "freedBytes", freed, "err", err)
			} else if freed > 0 {
				m.cfg.Logger.Info("images collected", "pressure", pressure, "freedBytes", freed)
			}
		}
	}
}

// evicting looks at the disk at every interval. Before an instance is ended, all images go that
// nobody uses.
func (m *Monitor) evicting(ctx context.Context) {
	ticker := time.NewTicker(m.cfg.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !m.full(ctx) {
			continue
		}
		if m.cfg.Collect != nil {
			if _, err := m.cfg.Collect(ctx, true); err != nil && ctx.Err() == nil {
				m.cfg.Logger.Warn("images were not collected", "pressure", true, "err", err)
			}
			if !m.full(ctx) {
				continue
			}
		}
		uid, err := m.cfg.Evict(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			m.cfg.Logger.Error("the disk is nearly full, and no instance was ended", "limitPercent", evictHigh, "err", err)
		case err == nil && uid == "":
			m.cfg.Logger.Error("the disk is nearly full, and no instance has written more than it requested: free space on the node", "limitPercent", evictHigh)
		case err == nil:
			m.cfg.Logger.Warn("the disk is nearly full: ending the instance that uses most of it", "instance", uid, "limitPercent", evictHigh)
		}
	}
}

// full says whether the disk is as full as is borne.
func (m *Monitor) full(ctx context.Context) bool {
	percent, err := m.cfg.DiskUsed(ctx)
	return err == nil && percent >= evictHigh
}

// text encodes our own types, which cannot go wrong.
func text(v any) string {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic("programmer error: encoding metrics: " + err.Error())
	}
	return string(encoded)
}
