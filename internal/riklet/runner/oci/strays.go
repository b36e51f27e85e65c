package oci

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/runner/command"
)

// execPrefix is the prefix of the directories for commands that run in a container. Each contains
// the PID file that the runtime writes for the command's process.
const execPrefix = "exec-"

// EndStrays ends the commands that an earlier riklet process executed in an instance's containers.
// Their sessions ended with that process.
func (e *pods) EndStrays(uid string, containers []string) {
	for _, container := range containers {
		dirs, err := filepath.Glob(filepath.Join(e.dirs.Bundle(uid, container), execPrefix+"*"))
		if err != nil {
			continue
		}
		for _, dir := range dirs {
			e.endStray(uid, container, dir)
		}
	}
}

func (e *pods) endStray(uid, container, dir string) {
	node := e.host.Node()
	log := node.Logger.With("instance", uid, "container", container)
	// A runtime that has not written the PID file yet does not find the directory any more, and
	// then ends the process itself.
	gone := filepath.Join(filepath.Dir(dir), "gone-"+filepath.Base(dir))
	if err := os.Rename(dir, gone); err != nil {
		log.Warn("looking for a command of an earlier riklet failed", "err", err)
		return
	}
	defer os.RemoveAll(gone)
	pid, noted, ok := notedProcess(filepath.Join(gone, "pid"))
	if !ok || !node.Cgroups.Contains(node.Cgroups.Container(uid, container), pid) || !startedBefore(pid, noted) {
		return
	}
	log.Info("ending a command of an earlier riklet", "pid", pid)
	command.KillSession(pid)
}

// notedProcess reads a PID file that a runtime wrote.
func notedProcess(path string) (pid int, noted time.Time, ok bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, time.Time{}, false
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, time.Time{}, false
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
	return pid, info.ModTime(), err == nil && pid > 1
}

// ticksPerSecond is the unit of times in /proc: USER_HZ, which is 100 on every architecture that
// Go supports.
const ticksPerSecond = 100

// startedBefore distinguishes a process whose PID was written at the time noted from a later
// process with the same PID. It allows one second for differences between clocks. PIDs do not
// wrap around within a second.
func startedBefore(pid int, noted time.Time) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The start time is the 22nd field, see proc_pid_stat(5). The first two fields end with the
	// name's ')'.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return false
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return false
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return false
	}
	age := time.Duration(up.Nano()) - time.Duration(ticks)*time.Second/ticksPerSecond
	return time.Now().Add(-age).Before(noted.Add(time.Second))
}
