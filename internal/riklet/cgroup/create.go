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

// Limits bound the processes of a group; 0 is no bound.
type Limits struct {
	MemoryBytes int64
	MilliCPU    int64
	PIDs        int64
}

// wanted are the v1 controllers of a group that Create makes: those that bound,
// measure or freeze.
var wanted = []string{"cpu", "cpuacct", "freezer", "memory", "pids"}

// cpuPeriod in microseconds is the one that the kernel and runc have by default.
const cpuPeriod = 100000

// Create makes a group with limits, for processes that no OCI runtime puts into one,
// and gives the cgroup.procs files through which they enter. Made again it gets the
// new limits.
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
			return nil, fmt.Errorf("making the cgroup %s: %w", path, err)
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

// settings are the files of the limits. One that is not bounded is not written: a
// new group has no bound.
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
	if l.GroupsOOMKills() { // what is in a group is one thing, as a kubelet has it
		list = append(list, setting{filepath.Join(l.Unified, group, oomGroup), "1"})
	}
	return list
}

// delegate hands the controllers of v2 down to the group; v1 has no such step.
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

// enable lets the groups below a group have what it has of the controllers.
func enable(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, controller := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(strings.Fields(string(have)), controller) {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
			return fmt.Errorf("handing the controller %s down from the cgroup %s: %w", controller, dir, err)
		}
	}
	return nil
}

// Freeze stops every process of a group and of those below where it is, or lets them
// go on. A group that is not there is no error when they are to go on.
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

// Unthrottle lifts the bound on the processor time of a group and of those below it, for
// what is to be killed: a process takes its SIGKILL itself, and thousands that share a
// fifth of a processor do not come to it for many minutes. A group that is not there is
// no error.
func (l Layout) Unthrottle(group string) error {
	dir, old := l.dir("cpu", group)
	file, none := "cpu.max", "max"
	if old {
		file, none = "cpu.cfs_quota_us", "-1"
	}
	err := overwrite(filepath.Join(dir, file), none)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // nor is one without the controller
	}
	if err != nil {
		err = fmt.Errorf("lifting the bound on the processor time of the cgroup %s: %w", group, err)
	}
	errs := []error{err}
	for _, child := range l.Children(group) {
		errs = append(errs, l.Unthrottle(filepath.Join(group, child)))
	}
	return errors.Join(errs...)
}

// overwrite writes a file that the kernel has made. It makes none: where the kernel has
// none, that would be a refusal of the kernel's.
func overwrite(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// thaw lets everything below a group go on: what is frozen does not die.
func (l Layout) thaw(group string) {
	for _, child := range l.Children(group) {
		l.thaw(filepath.Join(group, child))
	}
	_ = l.Freeze(group, false)
}
