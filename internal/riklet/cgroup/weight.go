package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/opencontainers/cgroups"
)

// The minimum and maximum shares in the kernel (kernel/sched/sched.h), and the shares of a whole
// processor, which are a group's default.
const (
	minShares          = 2
	maxShares          = 262_144
	sharesPerProcessor = 1024
)

// Shares converts thousandths of a processor to CPU shares, like the kubelet.
func Shares(milliCPU int64) uint64 {
	return uint64(min(max(milliCPU*sharesPerProcessor/1000, minShares), maxShares))
}

// SetWeight creates a group and sets its CPU weight. If processes need more CPU time than there is,
// the group gets time in proportion to the groups next to it. It may be called again. On a machine
// without the controller it has no effect.
func (l Layout) SetWeight(group string, milliCPU int64) error {
	dir, old := l.dir("cpu", group)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("creating the cgroup %s: %w", group, err)
	}
	file, value := "cpu.shares", Shares(milliCPU)
	if !old {
		if err := l.delegate(group); err != nil {
			return err
		}
		file, value = "cpu.weight", cgroups.ConvertCPUSharesToCgroupV2Value(value)
	}
	err := overwrite(filepath.Join(dir, file), strconv.FormatUint(value, 10))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("setting the CPU weight of the cgroup %s to %d: %w", group, value, err)
	}
	return nil
}
