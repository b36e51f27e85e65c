// Package monitor is the Node Monitor. It reads the facts of the node and, at a regular interval,
// the usage of the node and its instances, and reports them. It also watches the disk. If the disk
// is nearly full, it reports that to the scheduler and triggers the removal of unused images and
// the eviction of instances.
package monitor

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/rpc/nodev1"
)

const (
	// DefaultInterval is the interval of the papers.
	DefaultInterval = 15 * time.Second
	// PressureHigh and PressureLow are in percent of the disk. Their distance avoids frequent
	// changes of the state.
	PressureHigh = 90
	// PressureLow ends the pressure.
	PressureLow = 85
	// evictHigh is the usage above which the removal of images was not enough, so an instance
	// must be evicted.
	evictHigh = 95
	// collectInterval applies to old images. Under disk pressure, collectIntervalPressed applies.
	collectInterval        = 10 * time.Minute
	collectIntervalPressed = time.Minute
)

// Instance is an instance to measure.
type Instance struct {
	UID   string
	Usage instance.Usage // zero for an instance that does not run
}

// Config configures a [Monitor]. Read, Instances and Report are required.
type Config struct {
	// Interval defaults to DefaultInterval.
	Interval time.Duration
	// Read measures the node.
	Read func(ctx context.Context) (Reading, error)
	// Instances measures the instances.
	Instances func() []Instance
	// Report handles the usages of the node and of each instance, which do not change any more.
	Report func([]*nodev1.Usage)
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

	mu       sync.Mutex
	pressure bool
}

// New returns a monitor. Run starts it.
func New(cfg Config) *Monitor {
	if cfg.Interval <= 0 {
		cfg.Interval = DefaultInterval
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Monitor{cfg: cfg, last: map[string]instance.Usage{}}
}

// DiskPressure reports whether the disk is nearly full.
func (m *Monitor) DiskPressure() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pressure
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
	usages := []*nodev1.Usage{usageOf(&reading)}
	now := map[string]instance.Usage{}
	for _, in := range m.cfg.Instances() {
		usages = append(usages, &nodev1.Usage{
			Uid: in.UID, CpuMillis: cpuMillis(m.last[in.UID], in.Usage), MemoryBytes: signed(in.Usage.MemoryBytes), Vm: in.Usage.VM,
		})
		now[in.UID] = in.Usage
	}
	m.last = now
	m.mu.Lock()
	pressed := pressed(m.pressure, reading.WatchedUsedPercent)
	changed := pressed != m.pressure
	m.pressure = pressed
	m.mu.Unlock()
	if changed {
		m.cfg.Logger.Warn("disk pressure changed", "pressure", pressed, "usedPercent", reading.WatchedUsedPercent)
	}
	m.cfg.Report(usages)
}

// usageOf returns the usage of a node.
func usageOf(r *Reading) *nodev1.Usage {
	available := min(r.MemoryAvailable, r.MemoryTotal)
	m := &nodev1.MachineUsage{
		MeasuredUnix: r.At.Unix(), Cpus: int32(r.CPUs), CpuPercent: r.CPUPercent,
		MemoryTotalBytes: signed(r.MemoryTotal), MemoryAvailableBytes: signed(available),
	}
	for _, d := range r.Disks[:min(len(r.Disks), nodev1.MaxDisks)] {
		m.Disks = append(m.Disks, &nodev1.DiskUsage{Name: d.Name, TotalBytes: signed(d.Total), FreeBytes: signed(min(d.Free, d.Total))})
	}
	return &nodev1.Usage{
		CpuMillis: int64(math.Round(r.CPUPercent * float64(r.CPUs) * 10)), MemoryBytes: signed(r.MemoryTotal - available), Machine: m,
	}
}

// signed converts an amount that never exceeds an int64, unless the kernel is wrong.
func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// pressed decides whether there is disk pressure, depending on the former decision.
func pressed(before bool, usedPercent float64) bool {
	if before {
		return usedPercent > PressureLow
	}
	return usedPercent >= PressureHigh
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
	ticker := time.NewTicker(collectIntervalPressed)
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
