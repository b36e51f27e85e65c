package qemu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/internal/qmp"
)

type blockStats struct {
	Device string `json:"qdev"`
	Stats  struct {
		ReadBytes  uint64 `json:"rd_bytes"`
		WriteBytes uint64 `json:"wr_bytes"`
		Reads      uint64 `json:"rd_operations"`
		Writes     uint64 `json:"wr_operations"`
	} `json:"stats"`
}

// Metrics returns the counters of disks and memory. QEMU does not count the traffic of a TAP;
// the instance's network interface does.
func (v *VM) Metrics(ctx context.Context) (vmm.Metrics, error) {
	var m vmm.Metrics
	err := v.with(ctx, func(c *qmp.Client) error {
		var disks []blockStats
		err := c.Execute(ctx, "query-blockstats", nil, &disks)
		if err != nil {
			return err
		}
		for _, d := range disks {
			m.DiskReadBytes += d.Stats.ReadBytes
			m.DiskWriteBytes += d.Stats.WriteBytes
			m.DiskReads += d.Stats.Reads
			m.DiskWrites += d.Stats.Writes
		}
		var balloon struct {
			Actual int64 `json:"actual"`
		}
		if err := c.Execute(ctx, "query-balloon", nil, &balloon); err != nil {
			return err
		}
		given := mebibytes(v.m.MemoryBytes) << 20
		// The value comes from the guest's driver, so limit it to the possible range.
		actual := min(max(balloon.Actual, 0), given)
		m.MemoryBytes, m.BalloonBytes = uint64(actual), uint64(given-actual)
		if m.Exits, err = exits(ctx, c); err != nil {
			return err
		}
		m.VCPUNanos, err = v.processorTime(ctx, c)
		return err
	})
	return m, err
}

// processorTime reads the thread IDs of the virtual processors from QEMU, and their CPU time
// from the kernel. It ignores an ID that does not belong to a thread of the VMM's user.
func (v *VM) processorTime(ctx context.Context, c *qmp.Client) (uint64, error) {
	var processors []struct {
		Thread int `json:"thread-id"`
	}
	if err := c.Execute(ctx, "query-cpus-fast", nil, &processors); err != nil {
		return 0, err
	}
	var nanos uint64
	for _, p := range processors[:min(len(processors), vmm.MaxVCPUs)] {
		nanos += threadTime(p.Thread, v.m.UID)
	}
	return nanos, nil
}

// threadTime returns the first number of schedstat, see the kernel's
// Documentation/scheduler/sched-stats.rst. It returns 0 if the kernel does not count.
func threadTime(thread int, user uint32) uint64 {
	dir := filepath.Join("/proc", strconv.Itoa(thread))
	var st unix.Stat_t
	if thread <= 0 || unix.Stat(dir, &st) != nil || st.Uid != user {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(dir, "schedstat"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	nanos, _ := strconv.ParseUint(first, 10, 64)
	return nanos
}

// exits returns the number of exits from the guest to QEMU. Only KVM counts them, and QEMU
// reports them since 7.1.
func exits(ctx context.Context, c *qmp.Client) (uint64, error) {
	var answer []struct {
		Stats []struct {
			Name  string `json:"name"`
			Value any    `json:"value"`
		} `json:"stats"`
	}
	arguments := map[string]any{"target": "vcpu", "providers": []any{map[string]any{"provider": "kvm", "names": []string{"exits"}}}}
	var refused *qmp.Error
	if err := c.Execute(ctx, "query-stats", arguments, &answer); errors.As(err, &refused) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	var n uint64
	for _, processor := range answer {
		for _, s := range processor.Stats {
			if value, ok := s.Value.(float64); ok && value > 0 {
				n += uint64(value)
			}
		}
	}
	return n, nil
}
