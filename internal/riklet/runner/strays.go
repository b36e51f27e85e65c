package runner

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// execPrefix begins the folders of commands that run in a container: each has
// the file in which the runtime notes the command's process.
const execPrefix = "exec-"

// endStrayExecs ends the commands that an earlier agent ran in the instance's
// containers: nobody reads what they say or waits for them any more. It is
// called before new ones can be run.
func (m *machine) endStrayExecs() {
	for _, c := range m.containers {
		bundle := m.d.bundle(m.uid, c.spec.Name)
		dirs, err := filepath.Glob(filepath.Join(bundle, execPrefix+"*"))
		if err != nil {
			continue
		}
		for _, dir := range dirs {
			m.endStrayExec(c.spec.Name, dir)
		}
	}
}

func (m *machine) endStrayExec(container, dir string) {
	// A runtime that has yet to note the process does not find the folder any
	// more, and then ends the process itself.
	gone := filepath.Join(filepath.Dir(dir), "gone-"+filepath.Base(dir))
	if err := os.Rename(dir, gone); err != nil {
		m.log.Warn("a command of an earlier agent cannot be looked for", "container", container, "err", err)
		return
	}
	defer os.RemoveAll(gone)
	pid, noted, ok := notedProcess(filepath.Join(gone, "pid"))
	if !ok || !m.d.cgroups.Contains(m.d.cgroup(m.uid)+"/"+container, pid) || !startedBefore(pid, noted) {
		return
	}
	m.log.Info("ending a command of an earlier agent", "container", container, "pid", pid)
	killSession(pid)
}

// notedProcess reads the file in which a runtime noted a process.
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

// ticksPerSecond of the times in /proc: USER_HZ, which is 100 on every
// architecture that Go runs on.
const ticksPerSecond = 100

// startedBefore tells a process that was noted from a later one of the same
// number. A second is left for clocks that differ; in it the numbers of
// processes do not begin anew.
func startedBefore(pid int, noted time.Time) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The 22nd field, see proc_pid_stat(5); the first two end with the name's ')'.
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
