package facts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/riklet/cgroup"
)

// process is a process of this machine.
type process struct {
	pid  int
	name string
}

// processes lists the processes that this one sees.
func processes() []process {
	dirs, _ := filepath.Glob("/proc/[0-9]*/comm") // only a wrong pattern is an error
	var all []process
	for _, path := range dirs {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if name := text(path); err == nil && name != "" {
			all = append(all, process{pid, name})
		}
	}
	return all
}

// unitOf returns the name of the systemd unit of a process, without ".service", or "".
func unitOf(pid int) string {
	for line := range strings.Lines(text(fmt.Sprintf("/proc/%d/cgroup", pid))) {
		for part := range strings.SplitSeq(strings.TrimSpace(line), "/") {
			// user@1000.service contains the whole session of a user.
			if unit, ok := strings.CutSuffix(part, ".service"); ok && !strings.HasPrefix(unit, "user@") {
				return unit
			}
		}
	}
	return ""
}

// main are the programs of rik that run until they are stopped.
var main = []string{"rik", "riklet", "controller", "scheduler"}

// running returns the processes of rik, without this one.
func (g *gatherer) running() []doctor.Process {
	var all []doctor.Process
	for _, p := range g.processes {
		if !slices.Contains(main, p.name) || p.pid == os.Getpid() {
			continue
		}
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
		if err != nil {
			continue
		}
		all = append(all, doctor.Process{PID: p.pid, Program: p.name, Replaced: strings.HasSuffix(target, " (deleted)"), Unit: unitOf(p.pid)})
	}
	return all
}

// limits returns the limits of the running program of rik, or else of this process.
func (g *gatherer) limits() doctor.Limits {
	l := doctor.Limits{
		PIDMax:           number("/proc/sys/kernel/pid_max"),
		InotifyInstances: number("/proc/sys/fs/inotify/max_user_instances"),
		InotifyWatches:   number("/proc/sys/fs/inotify/max_user_watches"),
	}
	pid := os.Getpid()
	var files, memory unix.Rlimit
	for _, p := range g.running() {
		// The process may have ended meanwhile.
		if unix.Prlimit(p.PID, unix.RLIMIT_NOFILE, nil, &files) == nil {
			pid, l.Process, l.Unit, l.OpenFiles = p.PID, p.Program, p.Unit, files.Cur
			break
		}
	}
	if l.Process == "" && unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &files) == nil {
		l.OpenFiles = files.Max // rik raises its own limit to this
	}
	if unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, nil, &memory) == nil {
		l.MemoryLock = memory.Cur
	}
	l.CgroupPIDs, l.Cgroup = limitOfPIDs(pid)
	return l
}

// limitOfPIDs returns the smallest pids.max of the cgroups of a process, and the cgroup that has it.
func limitOfPIDs(pid int) (least uint64, at string) {
	layout, err := cgroup.Detect()
	if err != nil {
		return 0, ""
	}
	root, own := layout.V1["pids"], ""
	for line := range strings.Lines(text(fmt.Sprintf("/proc/%d/cgroup", pid))) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if root != "" && slices.Contains(strings.Split(parts[1], ","), "pids") || root == "" && parts[1] == "" {
			own = parts[2]
		}
	}
	if root == "" {
		root = layout.Unified
	}
	for group := own; group != "" && group != "." && root != ""; group = filepath.Dir(group) {
		if limit := number(filepath.Join(root, group, "pids.max")); limit != 0 && (least == 0 || limit < least) {
			least, at = limit, group
		}
		if group == "/" {
			break
		}
	}
	return least, at
}
