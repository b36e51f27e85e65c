// Package cgroup reads, empties and removes the control groups of instances,
// whatever mixture of cgroup v1 and v2 the machine mounts.
//
// The OCI runtime makes the groups of containers and sets their limits; this
// package finds them again by a path relative to the hierarchies' roots
// ("/rik/<uid>"). It makes the groups of what no runtime starts, and puts the
// supervisors into one outside the agent's own.
package cgroup

import (
	"bufio"
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
)

// Layout is where the machine mounts its hierarchies.
type Layout struct {
	V1      map[string]string // controller (or "name=systemd") to mount point
	Unified string            // mount point of v2; "" when there is none
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

// errNone says what to do, too: "ip netns exec" mounts a /sys of its own, which
// has no cgroups, over the machine's, and nobody expects that of it.
var errNone = errors.New("no cgroup hierarchy is mounted where this process runs: " +
	"under \"ip netns exec\", use \"nsenter --net=/run/netns/NAME\" instead, for it leaves /sys as it is; " +
	"else mount one with \"mount -t cgroup2 none /sys/fs/cgroup\"")

func (l Layout) check() error {
	if len(l.V1) == 0 && l.Unified == "" {
		return errNone
	}
	return nil
}

// known are the v1 controllers that an OCI runtime makes groups in.
var known = []string{"blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "misc",
	"name=systemd", "net_cls", "net_prio", "perf_event", "pids", "rdma"}

// parse reads proc_pid_mountinfo(5): fields, a dash, type, source, options.
func parse(r io.Reader) (Layout, error) {
	layout := Layout{V1: map[string]string{}}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		fields, tail := strings.Fields(left), strings.Fields(right)
		if !ok || len(fields) < 5 || len(tail) < 3 {
			continue
		}
		switch mountPoint := fields[4]; tail[0] {
		case "cgroup2":
			if layout.Unified == "" {
				layout.Unified = mountPoint
			}
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

// Paths gives the directories that the group may have, one a hierarchy.
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

// Home is the group's directory in the hierarchy in which every group of a node is.
func (l Layout) Home(group string) string {
	if root := l.finder(); root != "" {
		return filepath.Join(root, group)
	}
	return l.Paths(group)[0]
}

// finder is the mount point of the hierarchy by which the members of a group can be found.
func (l Layout) finder() string {
	if pids := l.V1["pids"]; pids != "" {
		return pids
	}
	return l.Unified
}

// dir is the group's in the hierarchy that has a controller, and whether that is of v1.
func (l Layout) dir(controller, group string) (path string, v1 bool) {
	if root := l.V1[controller]; root != "" {
		return filepath.Join(root, group), true
	}
	return filepath.Join(l.Unified, group), false
}

// Make makes a group for processes that are to leave this one's groups, and
// gives the cgroup.procs files through which they do. Migrations wait for each other
// and, but for a moment after another, for an RCU grace period, so there is one only
// for each hierarchy in which this process is not at the root, and one more by which
// the group's members can be found.
func (l Layout) Make(group string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var procs []string
	for _, mountPoint := range l.left(string(data)) {
		path := filepath.Join(mountPoint, group)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, fmt.Errorf("making the cgroup %s: %w", path, err)
		}
		if err := l.inherit(path); err != nil {
			return nil, err
		}
		procs = append(procs, filepath.Join(path, "cgroup.procs"))
	}
	return procs, nil
}

// left gives the mount points of the hierarchies that Make needs, from the
// lines "number:controllers:path" of cgroups(7).
func (l Layout) left(own string) []string {
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

// inherit fills a new v1 cpuset group: it takes no process before it has CPUs
// and memory nodes, and the kernel does not hand down the parent's.
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
			return fmt.Errorf("filling %s of the cgroup %s: %w", name, path, err)
		}
	}
	return nil
}

// Children names the groups directly below group, in any hierarchy.
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

// Exists tells whether any hierarchy has the group.
func (l Layout) Exists(group string) bool {
	return slices.ContainsFunc(l.Paths(group), func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// Processes lists the processes in the group and the groups below it.
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

// pollInterval is how often a dying group is looked at: v1 tells nobody when a
// group becomes empty, short of a release agent for the whole machine.
const pollInterval = 5 * time.Millisecond

// Destroy kills every process in the group and below, frozen or throttled as it may be,
// and removes the groups.
// A group that is not there is no error. It goes on until ctx ends.
func (l Layout) Destroy(ctx context.Context, group string) error {
	for {
		if pids := l.Processes(group); len(pids) > 0 {
			_ = l.Unthrottle(group) // without it they die late, not never
			for _, pid := range pids {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			l.thaw(group)
		}
		err := l.remove(group)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("removing the cgroup %s, in which are processes %v: %w", group, l.Processes(group), errors.Join(err, context.Cause(ctx)))
		case <-time.After(pollInterval):
		}
	}
}

// remove deletes the group's directories, deepest first. The files in them are
// the kernel's: only rmdir(2) works.
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

// Contains tells whether a process is in the group or below it.
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
