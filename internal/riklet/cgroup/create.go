package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Limits limit the processes of a group; 0 means no limit.
type Limits struct {
	MemoryBytes int64
	MilliCPU    int64
	PIDs        int64
}

// wanted lists the v1 controllers of a group that Create creates: those that limit, measure or
// freeze.
var wanted = []string{"cpu", "cpuacct", "freezer", "memory", "pids"}

// Required are the controllers that a node needs to limit instances, with v1 or v2.
var Required = []string{"cpu", "memory", "pids"}

// cpuPeriod is in microseconds, the default of the kernel and runc.
const cpuPeriod = 100000

// Create creates a group with limits, for processes that no OCI runtime puts into one. It
// returns the cgroup.procs files through which they enter. For an existing group it sets the new
// limits.
func (l Layout) Create(group string, limits Limits) ([]string, error) {
	var paths []string
	for _, controller := range wanted {
		if mountPoint := l.V1[controller]; mountPoint != "" {
			paths = append(paths, filepath.Join(mountPoint, group))
		}
	}
	if l.Unified != "" {
		paths = append(paths, filepath.Join(l.Unified, group))
	}
	slices.Sort(paths)
	paths = slices.Compact(paths) // cpu and cpuacct are often one mount
	var procs []string
	for _, path := range paths {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, fmt.Errorf("creating the cgroup %s: %w", path, err)
		}
		procs = append(procs, filepath.Join(path, "cgroup.procs"))
	}
	if err := l.delegate(group); err != nil {
		return nil, err
	}
	for _, s := range l.settings(group, limits) {
		if err := os.WriteFile(s.path, []byte(s.value), 0); err != nil {
			return nil, fmt.Errorf("limiting the cgroup %s to %s: %w", group, s.value, err)
		}
	}
	return procs, nil
}

const oomGroup = "memory.oom.group"

type setting struct{ path, value string }

// settings returns the files and values of the limits. A limit of 0 is not written, because a
// new group has no limits.
func (l Layout) settings(group string, limits Limits) []setting {
	var list []setting
	add := func(value int64, controller, v1, v2, format string) {
		if value <= 0 {
			return
		}
		dir, old := l.dir(controller, group)
		file := v2
		if old {
			file, format = v1, "%d"
		}
		list = append(list, setting{filepath.Join(dir, file), fmt.Sprintf(format, value)})
	}
	add(limits.MemoryBytes, "memory", "memory.limit_in_bytes", "memory.max", "%d")
	add(limits.MilliCPU*cpuPeriod/1000, "cpu", "cpu.cfs_quota_us", "cpu.max", "%d "+strconv.Itoa(cpuPeriod))
	add(limits.PIDs, "pids", "pids.max", "pids.max", "%d")
	if l.GroupsOOMKills() { // a group is one unit, like in the kubelet
		list = append(list, setting{filepath.Join(l.Unified, group, oomGroup), "1"})
	}
	return list
}

// delegate enables the controllers of v2 down to the group. In v1 this is not necessary.
func (l Layout) delegate(group string) error {
	if l.Unified == "" {
		return nil
	}
	dir := l.Unified
	for name := range strings.SplitSeq(strings.Trim(filepath.Dir(group), "/"), "/") {
		if err := enable(dir); err != nil {
			return err
		}
		dir = filepath.Join(dir, name)
	}
	return enable(dir)
}

// enable enables a group's available controllers for the groups below it.
func enable(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, controller := range Required {
		if !slices.Contains(strings.Fields(string(have)), controller) {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
			return fmt.Errorf("enabling the controller %s below the cgroup %s: %w", controller, dir, err)
		}
	}
	return nil
}

// Freeze freezes every process of a group and of those below it, or thaws them. Thawing a group
// that does not exist is not an error.
func (l Layout) Freeze(group string, frozen bool) error {
	dir, old := l.dir("freezer", group)
	file, off, on := "cgroup.freeze", "0", "1"
	if old {
		file, off, on = "freezer.state", "THAWED", "FROZEN"
	}
	value := off
	if frozen {
		value = on
	}
	err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
	if errors.Is(err, fs.ErrNotExist) && !frozen {
		return nil
	}
	if err != nil {
		return fmt.Errorf("freezing the cgroup %s: %w", group, err)
	}
	return nil
}

// Unthrottle removes the limit on the CPU time of a group and of those below it, before its
// processes are killed. A process handles its SIGKILL itself, and thousands of processes that
// share a fifth of a processor need many minutes for that. It is not an error if the group does
// not exist.
func (l Layout) Unthrottle(group string) error {
	dir, old := l.dir("cpu", group)
	file, none := "cpu.max", "max"
	if old {
		file, none = "cpu.cfs_quota_us", "-1"
	}
	err := overwrite(filepath.Join(dir, file), none)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // or the group lacks the controller
	}
	if err != nil {
		err = fmt.Errorf("removing the CPU limit of the cgroup %s: %w", group, err)
	}
	errs := []error{err}
	for _, child := range l.Children(group) {
		errs = append(errs, l.Unthrottle(filepath.Join(group, child)))
	}
	return errors.Join(errs...)
}

// overwrite writes a file that the kernel has created. It does not create one, because the error
// should show that the kernel has no such file.
func overwrite(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// thaw thaws all groups below a group, because frozen processes do not die.
func (l Layout) thaw(group string) {
	for _, child := range l.Children(group) {
		l.thaw(filepath.Join(group, child))
	}
	_ = l.Freeze(group, false)
}
