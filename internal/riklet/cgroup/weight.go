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

// The least and the most shares that the kernel knows (kernel/sched/sched.h), and those
// of a whole processor, which any group has at first.
const (
	minShares          = 2
	maxShares          = 262_144
	sharesPerProcessor = 1024
)

// Shares are the shares of so many thousandths of a processor, as a kubelet gives them.
func Shares(milliCPU int64) uint64 {
	return uint64(min(max(milliCPU*sharesPerProcessor/1000, minShares), maxShares)) //nolint:gosec // bounded above
}

// Weigh makes a group whose processes together get so many thousandths of a processor
// where more is wanted than there is: in proportion to the groups beside it. It may be
// called again. A machine without the controller shares its processors as it does.
func (l Layout) Weigh(group string, milliCPU int64) error {
	dir, old := l.dir("cpu", group)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the cgroup %s: %w", group, err)
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
		return fmt.Errorf("weighing the cgroup %s with %d: %w", group, value, err)
	}
	return nil
}
