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
	shares := Shares(milliCPU)
	path, value := filepath.Join(l.Unified, group, "cpu.weight"), cgroups.ConvertCPUSharesToCgroupV2Value(shares)
	if root := l.V1["cpu"]; root != "" {
		path, value = filepath.Join(root, group, "cpu.shares"), shares
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the cgroup %s: %w", group, err)
	}
	if l.V1["cpu"] == "" {
		if err := l.delegate(group); err != nil {
			return err
		}
	}
	// Not made where the kernel has none: that would be a refusal of the kernel's.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = f.Write(strconv.AppendUint(nil, value, 10))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("weighing the cgroup %s with %d: %w", group, value, err)
	}
	return nil
}
