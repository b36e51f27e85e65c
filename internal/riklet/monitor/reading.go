package monitor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/mem"
)

// Reading is one measurement of a node.
type Reading struct {
	At                           time.Time
	CPUs                         int
	CPUPercent                   float64 // average of all processors since the last reading
	MemoryTotal, MemoryAvailable uint64
	Disks                        []Disk
	// WatchedUsedPercent is the usage of the file system on which instances live.
	WatchedUsedPercent float64
}

// Disk is one local file system on a device.
type Disk struct {
	Name        string
	Total, Free uint64
}

// Reader measures the machine. The first reading covers the time since boot.
type Reader struct {
	path string

	mu   sync.Mutex
	last cpu.TimesStat
}

// NewReader returns a Reader that watches the file system that contains path.
func NewReader(path string) *Reader { return &Reader{path: path} }

// Read measures now.
func (r *Reader) Read(ctx context.Context) (Reading, error) {
	times, err := cpu.TimesWithContext(ctx, false)
	if err != nil {
		return Reading{}, fmt.Errorf("reading the CPU times: %w", err)
	}
	if len(times) == 0 {
		return Reading{}, errors.New("the kernel reports no CPU times")
	}
	cpus, err := cpu.CountsWithContext(ctx, true)
	if err != nil {
		return Reading{}, fmt.Errorf("counting the processors: %w", err)
	}
	memory, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return Reading{}, fmt.Errorf("reading the memory: %w", err)
	}
	watched, err := disk.UsageWithContext(ctx, r.path)
	if err != nil {
		return Reading{}, fmt.Errorf("reading the disk: %w", err)
	}
	r.mu.Lock()
	before := r.last
	r.last = times[0]
	r.mu.Unlock()
	return Reading{
		At: time.Now(), CPUs: cpus, CPUPercent: busy(before, times[0]),
		MemoryTotal: memory.Total, MemoryAvailable: memory.Available,
		Disks: disks(ctx), WatchedUsedPercent: watched.UsedPercent,
	}, nil
}

// DiskUsed returns the used share of the watched disk, in percent.
func (r *Reader) DiskUsed(ctx context.Context) (float64, error) {
	watched, err := disk.UsageWithContext(ctx, r.path)
	if err != nil {
		return 0, fmt.Errorf("reading the disk: %w", err)
	}
	return watched.UsedPercent, nil
}

// busy returns the share of time that was spent neither idle nor waiting for a disk.
func busy(before, now cpu.TimesStat) float64 {
	// The time of guests is already part of user and nice.
	total := func(t cpu.TimesStat) float64 {
		return t.User + t.Nice + t.System + t.Irq + t.Softirq + t.Steal + t.Idle + t.Iowait
	}
	idle := func(t cpu.TimesStat) float64 { return t.Idle + t.Iowait }
	elapsed := total(now) - total(before)
	if elapsed <= 0 {
		return 0
	}
	share := 100 * (1 - (idle(now)-idle(before))/elapsed)
	return min(max(share, 0), 100)
}

// disks lists each device once, without those that cannot be read.
func disks(ctx context.Context) []Disk {
	partitions, err := disk.PartitionsWithContext(ctx, false)
	if err != nil {
		return nil
	}
	var found []Disk
	for _, p := range partitions {
		known := slices.ContainsFunc(found, func(d Disk) bool { return d.Name == p.Device })
		if known || !strings.HasPrefix(p.Device, "/dev/") {
			continue
		}
		if u, err := disk.UsageWithContext(ctx, p.Mountpoint); err == nil && u.Total > 0 {
			found = append(found, Disk{Name: p.Device, Total: u.Total, Free: u.Free})
		}
	}
	return found
}
