package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Stats is the usage of a group and those below it.
type Stats struct {
	CPUNanos uint64
	// MemoryBytes is the working set: the charged memory without the file pages that the kernel
	// would reclaim first.
	MemoryBytes uint64
}

// Stats returns the current usage of a group. If the group does not exist, the error is
// fs.ErrNotExist.
// fs.ErrNotExist.
func (l Layout) Stats(group string) (Stats, error) {
	cpu, errCPU := l.cpuNanos(group)
	memory, errMemory := l.memoryBytes(group)
	return Stats{CPUNanos: cpu, MemoryBytes: memory}, errors.Join(errCPU, errMemory)
}

func (l Layout) cpuNanos(group string) (uint64, error) {
	dir, old := l.dir("cpuacct", group)
	if old {
		return readUint(filepath.Join(dir, "cpuacct.usage"))
	}
	micros, err := readKey(filepath.Join(dir, "cpu.stat"), "usage_usec")
	return micros * 1000, err
}

func (l Layout) memoryBytes(group string) (uint64, error) {
	usage, key := "memory.current", "inactive_file"
	dir, old := l.dir("memory", group)
	if old {
		usage, key = "memory.usage_in_bytes", "total_inactive_file"
	}
	charged, err := readUint(filepath.Join(dir, usage))
	if err != nil {
		return 0, err
	}
	inactive, err := readKey(filepath.Join(dir, "memory.stat"), key)
	if err != nil || inactive > charged {
		return charged, nil //nolint:nilerr // the two files are not read at one instant
	}
	return charged - inactive, nil
}

// OOMKills returns how many processes of the group, and of the groups below it, the kernel killed
// because of memory. It is 0 if the group does not exist.
func (l Layout) OOMKills(group string) uint64 {
	dir, old := l.dir("memory", group)
	if !old { // the file includes the groups below
		n, _ := readKey(filepath.Join(dir, "memory.events"), "oom_kill")
		return n
	}
	total := uint64(0)
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			n, _ := readKey(filepath.Join(path, "memory.oom_control"), "oom_kill")
			total += n
		}
		return nil // a group that was removed in the meantime does not count
	})
	return total
}

// GroupsOOMKills reports whether the kernel can kill all processes of a group when it runs out
// of memory, instead of one. v2 can, if it has the memory controller.
func (l Layout) GroupsOOMKills() bool {
	if l.V1["memory"] != "" || l.Unified == "" {
		return false
	}
	have, err := os.ReadFile(filepath.Join(l.Unified, "cgroup.controllers"))
	return err == nil && slices.Contains(strings.Fields(string(have)), "memory")
}

// SwapAccounting reports whether a limit on the sum of memory and swap can be set.
func (l Layout) SwapAccounting() bool {
	if root := l.V1["memory"]; root != "" {
		_, err := os.Stat(filepath.Join(root, "memory.memsw.limit_in_bytes"))
		return err == nil
	}
	data, err := os.ReadFile("/proc/swaps")
	return err == nil && strings.Count(string(data), "\n") > 1
}

func readUint(path string) (uint64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
}

// readKey returns one value of a file of "key value" lines.
func readKey(path, key string) (uint64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == key {
			return strconv.ParseUint(value, 10, 64)
		}
	}
	return 0, &fs.PathError{Op: "find " + key, Path: path, Err: fs.ErrNotExist}
}
