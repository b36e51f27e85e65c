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
// the time at which the command began, and the PID file that the runtime writes for its process.
const execPrefix = "exec-"

// EndLeftoverCommands ends the commands that an earlier riklet process executed in an instance's
// containers. Their sessions ended with that process.
func (e *pods) EndLeftoverCommands(uid string, containers []string) {
	for _, container := range containers {
		dirs, err := filepath.Glob(filepath.Join(e.dirs.Bundle(uid, container), execPrefix+"*"))
		if err != nil {
			continue
		}
		for _, dir := range dirs {
			e.endLeftoverCommand(uid, container, dir)
		}
	}
}

func (e *pods) endLeftoverCommand(uid, container, dir string) {
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
	pid, ok := leftoverCommand(gone)
	if !ok || !node.Cgroups.Contains(node.Cgroups.Container(uid, container), pid) {
		return
	}
	log.Info("ending a command of an earlier riklet", "pid", pid)
	command.KillSession(pid)
}

// beganFile contains the time since boot at which a command's directory was made. A wall clock
// that was set since then does not change what it means.
const beganFile = "began"

// begin saves the current time in the directory of a command that is about to start.
func begin(dir string) error {
	now, err := uptime()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, beganFile), []byte(now.String()), 0o600)
}

// leftoverCommand returns the process of the command with that directory, if it still runs. Nothing
// is known of a command of a riklet that did not save when it began the command.
func leftoverCommand(dir string) (pid int, ok bool) {
	pidFile := filepath.Join(dir, "pid")
	pid, ok = notedProcess(pidFile)
	if !ok {
		return 0, false
	}
	lasted, ok := elapsed(filepath.Join(dir, beganFile), pidFile)
	if !ok {
		return 0, false
	}
	data, err := os.ReadFile(filepath.Join(dir, beganFile))
	if err != nil {
		return 0, false
	}
	began, err := time.ParseDuration(string(data))
	if err != nil {
		return 0, false
	}
	started, ok := startOf(pid)
	return pid, ok && startedWithin(started, began, lasted)
}

// elapsed returns the time between the writing of two files. Both times are of the same clock,
// and little time passes between them. Thus only a clock that is set in that moment makes the
// result wrong.
func elapsed(first, second string) (time.Duration, bool) {
	before, err := os.Stat(first)
	if err != nil {
		return 0, false
	}
	after, err := os.Stat(second)
	if err != nil {
		return 0, false
	}
	return after.ModTime().Sub(before.ModTime()), true
}

// notedProcess reads a PID file that a runtime wrote.
func notedProcess(path string) (pid int, ok bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
	return pid, err == nil && pid > 1
}

const (
	// ticksPerSecond is the unit of times in /proc: USER_HZ, which is 100 on every architecture
	// that Go supports.
	ticksPerSecond = 100
	// startTolerance is longer than the units of the kernel's clocks. PIDs do not wrap around
	// within this time.
	startTolerance = time.Second
	// startTimeout is longer than a runtime takes to start a command, also on a busy machine. A
	// longer time shows that the wall clock was set in that moment.
	startTimeout = time.Minute
)

// startedWithin distinguishes the process of a command from a later process with the same PID.
// All times are since boot. began is from before the start of the command. lasted is how long it
// then took until the process was noted.
func startedWithin(started, began, lasted time.Duration) bool {
	if lasted < -startTolerance || lasted > startTimeout {
		return false
	}
	return started >= began-startTolerance && started <= began+lasted+startTolerance
}

// startOf returns when a process started, as the time since boot.
func startOf(pid int) (time.Duration, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The start time is the 22nd field, see proc_pid_stat(5). The first two fields end with the
	// name's ')'.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return 0, false
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	return time.Duration(ticks) * time.Second / ticksPerSecond, err == nil
}

func uptime() (time.Duration, error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return time.Duration(up.Nano()), nil
}
