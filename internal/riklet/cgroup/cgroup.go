// Package cgroup reads, empties and removes the control groups of instances, with any
// combination of cgroup v1 and v2 on the machine.
//
// The OCI runtime creates the groups of containers and sets their limits. This package finds
// them by a path relative to the roots of the hierarchies ("/rik/<uid>"). It creates the groups
// of processes that no runtime starts, and moves the supervisors out of the agent's groups.
package cgroup

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/pause"
)

// Layout has the mount points of the machine's hierarchies.
type Layout struct {
	V1      map[string]string // controller (or "name=systemd") to mount point
	Unified string            // mount point of v2; "" on a machine without it
}

// Detect reads the layout of this machine.
func Detect() (Layout, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return Layout{}, err
	}
	defer f.Close()
	layout, err := parse(f)
	if err != nil {
		return layout, fmt.Errorf("reading the mounts of this process: %w", err)
	}
	return layout, layout.check()
}

// errNone includes a remedy, because the cause is unexpected: "ip netns exec" mounts another
// /sys, without cgroups, over the machine's.
var errNone = errors.New("this process has no mounted cgroup hierarchy. " +
	"Instead of \"ip netns exec\" use \"nsenter --net=/run/netns/NAME\", which does not replace /sys. " +
	"Otherwise mount one with \"mount -t cgroup2 none /sys/fs/cgroup\"")

func (l Layout) check() error {
	if len(l.V1) == 0 && l.Unified == "" {
		return errNone
	}
	return nil
}

// Mode says which versions of cgroups have the controllers: "v1", "v2", or "hybrid" if both versions
// are mounted.
func (l Layout) Mode() string {
	switch {
	case l.Unified == "":
		return "v1"
	case len(l.V1) == 0:
		return "v2"
	default:
		return "hybrid"
	}
}

// Controllers returns the available controllers of both versions, sorted.
func (l Layout) Controllers() []string {
	var all []string
	for controller := range l.V1 {
		if !strings.Contains(controller, "=") {
			all = append(all, controller)
		}
	}
	if l.Unified != "" {
		data, err := os.ReadFile(filepath.Join(l.Unified, "cgroup.controllers"))
		if err == nil {
			all = append(all, strings.Fields(string(data))...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// known lists the v1 controllers in which an OCI runtime creates groups.
var known = []string{"blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "misc",
	"name=systemd", "net_cls", "net_prio", "perf_event", "pids", "rdma"}

// parse parses proc_pid_mountinfo(5): fields, a dash, type, source, options.
func parse(r io.Reader) (Layout, error) {
	layout := Layout{V1: map[string]string{}}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		remaining, right, ok := strings.Cut(lines.Text(), " - ")
		fields, tail := strings.Fields(remaining), strings.Fields(right)
		if !ok || len(fields) < 5 || len(tail) < 3 {
			continue
		}
		switch mountPoint := fields[4]; tail[0] {
		case "cgroup2":
			layout.Unified = cmp.Or(layout.Unified, mountPoint)
		case "cgroup":
			for option := range strings.SplitSeq(tail[2], ",") {
				if slices.Contains(known, option) && layout.V1[option] == "" {
					layout.V1[option] = mountPoint
				}
			}
		}
	}
	return layout, lines.Err()
}

// Paths returns the directories that the group may have, one per hierarchy.
func (l Layout) Paths(group string) []string {
	var paths []string
	for _, mountPoint := range l.V1 {
		paths = append(paths, filepath.Join(mountPoint, group))
	}
	if l.Unified != "" {
		paths = append(paths, filepath.Join(l.Unified, group))
	}
	slices.Sort(paths)
	return slices.Compact(paths) // cpu and cpuacct are often one mount
}

// Dir returns the group's directory in the hierarchy that has every group of a node.
func (l Layout) Dir(group string) string {
	if root := l.finder(); root != "" {
		return filepath.Join(root, group)
	}
	return l.Paths(group)[0]
}

// finder returns the mount point of the hierarchy in which the members of a group can be found.
func (l Layout) finder() string {
	if pids := l.V1["pids"]; pids != "" {
		return pids
	}
	return l.Unified
}

// dir returns the group's directory in the hierarchy of a controller, and whether that hierarchy
// is v1.
func (l Layout) dir(controller, group string) (path string, v1 bool) {
	if root := l.V1[controller]; root != "" {
		return filepath.Join(root, group), true
	}
	return filepath.Join(l.Unified, group), false
}

// Make creates a group for processes that must leave this process's groups. It returns the
// cgroup.procs files to write to for that. Migrations wait for each other and, except soon after
// another one, for an RCU grace period. Therefore there is only one for each hierarchy in which
// this process is not at the root, and one more in which the group's members can be found.
func (l Layout) Make(group string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var procs []string
	for _, mountPoint := range l.remaining(string(data)) {
		path := filepath.Join(mountPoint, group)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, fmt.Errorf("creating the cgroup %s: %w", path, err)
		}
		if err := l.inherit(path); err != nil {
			return nil, err
		}
		procs = append(procs, filepath.Join(path, "cgroup.procs"))
	}
	return procs, nil
}

// remaining returns the mount points of the hierarchies that Make needs, from the lines
// "number:controllers:path" of cgroups(7).
func (l Layout) remaining(own string) []string {
	mountPoints := []string{}
	if finder := l.finder(); finder != "" {
		mountPoints = append(mountPoints, finder)
	}
	for line := range strings.Lines(own) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || parts[2] == "/" {
			continue
		}
		if parts[1] == "" && l.Unified != "" {
			mountPoints = append(mountPoints, l.Unified)
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			if mountPoint := l.V1[controller]; mountPoint != "" {
				mountPoints = append(mountPoints, mountPoint)
			}
		}
	}
	slices.Sort(mountPoints)
	return slices.Compact(mountPoints)
}

// inherit sets the CPUs and memory nodes of a new v1 cpuset group. Without them it accepts no
// process, and the kernel does not copy the parent's.
func (l Layout) inherit(path string) error {
	root := l.V1["cpuset"]
	if root == "" || !strings.HasPrefix(path, root+"/") {
		return nil
	}
	if parent := filepath.Dir(path); parent != root {
		if err := l.inherit(parent); err != nil {
			return err
		}
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(path, name))
		if err != nil || len(strings.TrimSpace(string(have))) > 0 {
			continue
		}
		value, err := os.ReadFile(filepath.Join(filepath.Dir(path), name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(path, name), value, 0); err != nil {
			return fmt.Errorf("writing %s of the cgroup %s: %w", name, path, err)
		}
	}
	return nil
}

// Children returns the names of the groups directly below group, in any hierarchy.
func (l Layout) Children(group string) []string {
	var names []string
	for _, path := range l.Paths(group) {
		entries, err := os.ReadDir(path)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Exists reports whether any hierarchy has the group.
func (l Layout) Exists(group string) bool {
	return slices.ContainsFunc(l.Paths(group), func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// Processes returns the processes in the group and the groups below it.
func (l Layout) Processes(group string) []int {
	var pids []int
	for _, path := range l.Paths(group) {
		_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil //nolint:nilerr // a group that goes away meanwhile has no processes
			}
			pids = append(pids, readPIDs(filepath.Join(p, "cgroup.procs"))...)
			return nil
		})
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

func readPIDs(path string) []int {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var pids []int
	for field := range strings.FieldsSeq(string(data)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// pollInterval is the interval between two checks whether a group is empty. v1 sends no
// notification when a group becomes empty, except through a release agent for the whole machine.
const pollInterval = 5 * time.Millisecond

// Destroy kills every process in the group and below, even if it is frozen or throttled, and
// removes the groups. It is not an error if the group does not exist. It retries until ctx ends.
func (l Layout) Destroy(ctx context.Context, group string) error {
	for {
		if pids := l.Processes(group); len(pids) > 0 {
			_ = l.Unthrottle(group) // if this fails, the processes end later
			for _, pid := range pids {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			l.thaw(group)
		}
		err := l.remove(group)
		if err == nil {
			return nil
		}
		if !pause.For(ctx, pollInterval) {
			return fmt.Errorf("removing the cgroup %s, which has the processes %v: %w", group, l.Processes(group), errors.Join(err, context.Cause(ctx)))
		}
	}
}

// remove deletes the group's directories, deepest first. The files in them belong to the kernel,
// so only rmdir(2) works.
func (l Layout) remove(group string) error {
	var errs []error
	for _, path := range l.Paths(group) {
		var dirs []string
		_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, &fs.PathError{Op: "rmdir", Path: dir, Err: err})
			}
		}
	}
	return errors.Join(errs...)
}

// Contains reports whether a process is in the group or below it.
func (l Layout) Contains(group string, pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (parts[2] == group || strings.HasPrefix(parts[2], group+"/")) {
			return true
		}
	}
	return false
}
