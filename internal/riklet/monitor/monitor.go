// Package monitor is the Node Monitor. It reads the facts of the node and, at a regular interval,
// the usage of the node and its instances, and reports them in the JSON formats of the papers. It
// also watches the disk: it reports a nearly full disk to the scheduler, and triggers the removal
// of unused images and the eviction of instances.
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
	// DefaultInterval is the interval of the papers.
	DefaultInterval = 15 * time.Second
	// pressureHigh and pressureLow are in percent of the disk. Their distance avoids frequent
	// changes of the state.
	pressureHigh = 90
	pressureLow  = 85
	// evictHigh is the usage above which the removal of images was not enough, so an instance
	// must be evicted.
	evictHigh = 95
	// collectInterval applies to old images. Under disk pressure, collectUnderPress applies.
	collectInterval   = 10 * time.Minute
	collectUnderPress = time.Minute
)

// Instance is an instance to measure.
type Instance struct {
	UID, Name, Workload string
	// Source is an image or another origin of the process. Version may be a part of Source.
	Source, Version string
	Phase           rikv1alpha1.InstancePhase
	Address         string
	Usage           instance.Usage // zero for an instance that does not run
}

// Config configures a [Monitor]. Node, Path, Read, Instances and Report are required.
type Config struct {
	Node string
	// Path is on the disk that is watched.
	Path string
	// Interval defaults to DefaultInterval.
	Interval time.Duration
	// Read measures the node.
	Read func(ctx context.Context) (Reading, error)
	// Instances measures the instances.
	Instances func() []Instance
	// Report handles the texts: of the node, and of each instance by UID.
	Report func(node string, instances map[string]string)
	// Collect removes unused images; with pressure, as many as possible. If it is nil, the node
	// has no images.
	Collect func(ctx context.Context, pressure bool) (freedBytes int64, err error)
	// DiskUsed returns the used share of the watched disk, in percent. Required with Evict.
	DiskUsed func(ctx context.Context) (percent float64, err error)
	// Evict ends an instance that fills the disk, and returns its UID or "". If it is nil,
	// nothing is evicted.
	Evict  func(ctx context.Context) (uid string, err error)
	Logger *slog.Logger // nil discards logs
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

// New returns a monitor. Run starts it.
func New(cfg Config) *Monitor {
	if cfg.Interval <= 0 {
		cfg.Interval = DefaultInterval
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Monitor{cfg: cfg, last: map[string]instance.Usage{}}
}

// DiskPressure reports whether the disk is nearly full.
func (m *Monitor) DiskPressure() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pressure
}

// Latest returns the last texts, which are empty before the first measurement. The caller must
// not change the map.
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

// measure takes one reading and reports it.
func (m *Monitor) measure(ctx context.Context) {
	reading, err := m.cfg.Read(ctx)
	if err != nil {
		if ctx.Err() == nil {
			m.cfg.Logger.Warn("measuring the node failed", "err", err)
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

// pressed decides whether there is disk pressure, depending on the former decision.
func pressed(before bool, usedPercent float64) bool {
	if before {
		return usedPercent > pressureLow
	}
	return usedPercent >= pressureHigh
}

// cpuMillis returns the load between two measurements, or since the start of the process for the
// first one. It returns 0 for a process that restarted in between.
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

// collecting checks regularly whether images can be removed.
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
				m.cfg.Logger.Warn("unused images were not removed", "pressure", pressure, "freedBytes", freed, "err", err)
			} else if freed > 0 {
				m.cfg.Logger.Info("unused images removed", "pressure", pressure, "freedBytes", freed)
			}
		}
	}
}

// evicting checks the disk at every interval. Before an instance is evicted, all unused images
// are removed.
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
				m.cfg.Logger.Warn("unused images were not removed", "pressure", true, "err", err)
			}
			if !m.full(ctx) {
				continue
			}
		}
		uid, err := m.cfg.Evict(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			m.cfg.Logger.Error("the disk is nearly full, and no instance was evicted", "limitPercent", evictHigh, "err", err)
		case err == nil && uid == "":
			m.cfg.Logger.Error("the disk is nearly full, and no instance has written more than it requested; free space on the node", "limitPercent", evictHigh)
		case err == nil:
			m.cfg.Logger.Warn("the disk is nearly full; evicting the instance that uses most of it", "instance", uid, "limitPercent", evictHigh)
		}
	}
}

// full reports whether the disk usage has reached evictHigh.
func (m *Monitor) full(ctx context.Context) bool {
	percent, err := m.cfg.DiskUsed(ctx)
	return err == nil && percent >= evictHigh
}

// text encodes types of this package, which cannot fail.
func text(v any) string {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic("programmer error: encoding metrics: " + err.Error())
	}
	return string(encoded)
}
