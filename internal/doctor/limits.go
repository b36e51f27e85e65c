package doctor

import (
	"fmt"
	"math"
	"strings"
)

// What rik needs of limits. unitOpenFiles is the value in rik's systemd units.
const (
	minOpenFiles     = 65536
	unitOpenFiles    = 1048576
	minCgroupPIDs    = 8192 // about 250 instances with 32 threads each
	minPIDMax        = 32768
	wantedPIDMax     = 4194304 // the kernel's maximum, PID_MAX_LIMIT
	minInotify       = 512
	wantedInotify    = 8192
	minWatches       = 65536
	wantedWatches    = 524288
	minMemoryLock    = 64 << 10
	wantedMemoryLock = "infinity"
)

// of says whose limits they are.
func (l Limits) of() string {
	if l.Process == "" {
		return "this shell"
	}
	return "the process " + l.Process
}

// setLimit returns the command that changes a limit of the running program.
func (l Limits) setLimit(name, setting string) string {
	if l.Unit == "" {
		return ""
	}
	return dropIn(strings.TrimSuffix(l.Unit, ".service")+".service", name, setting)
}

func checkOpenFiles(m *Machine) []Finding {
	l := m.Limits
	switch {
	case l.OpenFiles == 0:
		return []Finding{{Severity: Info, Message: "The limit of open files cannot be read."}}
	case l.OpenFiles >= minOpenFiles:
		return ok(fmt.Sprintf("%s may have %d files open.", capital(l.of()), l.OpenFiles))
	}
	f := Finding{
		Severity: Warning, Message: fmt.Sprintf("%s may have only %d files open; rik needs %d for large clusters.", capital(l.of()), l.OpenFiles, minOpenFiles),
		Affects: "the server refuses connections, and the node starts fewer instances", Fix: l.setLimit("files", fmt.Sprintf("LimitNOFILE=%d", unitOpenFiles)),
	}
	if l.Process == "" {
		f.Severity = Info
		f.Message += " The systemd units of rik set their own limit."
		f.Fix = fmt.Sprintf("ulimit -n %d", minOpenFiles)
	}
	return []Finding{f}
}

func checkProcesses(m *Machine) []Finding {
	l := m.Limits
	if l.CgroupPIDs == 0 || l.CgroupPIDs >= minCgroupPIDs {
		return ok("The number of processes is not limited too much by a cgroup.")
	}
	f := Finding{
		Severity: Warning, Message: fmt.Sprintf("The cgroup %s allows only %d processes and threads to %s.", l.Cgroup, l.CgroupPIDs, l.of()),
		Affects: "instances do not start when the limit is reached", Fix: l.setLimit("tasks", "TasksMax=infinity"),
	}
	if l.Process == "" {
		f.Severity = Info
		f.Message += " The systemd units of rik set their own limit."
	}
	return []Finding{f}
}

func checkPIDMax(m *Machine) []Finding {
	if m.Limits.PIDMax == 0 || m.Limits.PIDMax >= minPIDMax {
		return ok("The machine can have enough processes.")
	}
	return []Finding{{
		Severity: Warning, Message: fmt.Sprintf("kernel.pid_max is %d, so the machine can have no more processes and threads.", m.Limits.PIDMax),
		Affects: "instances do not start when the limit is reached", Fix: sysctl("kernel.pid_max", fmt.Sprint(wantedPIDMax)),
	}}
}

func checkInotify(m *Machine) []Finding {
	l := m.Limits
	var low, commands []string
	add := func(name string, value, least, wanted uint64) {
		if value != 0 && value < least {
			low = append(low, fmt.Sprintf("%s is %d", name, value))
			commands = append(commands, sysctl(name, fmt.Sprint(wanted)))
		}
	}
	add("fs.inotify.max_user_instances", l.InotifyInstances, minInotify, wantedInotify)
	add("fs.inotify.max_user_watches", l.InotifyWatches, minWatches, wantedWatches)
	if len(low) == 0 {
		return ok("Instances can watch enough files.")
	}
	return []Finding{{
		Severity: Info, Message: capital(strings.Join(low, ", ")) + ". All containers of root share this limit.",
		Affects: `programs in many containers that watch files fail with "too many open files"`, Fix: steps(commands...),
	}}
}

func checkMemlock(m *Machine) []Finding {
	l := m.Limits
	if l.MemoryLock == 0 || l.MemoryLock >= minMemoryLock || l.MemoryLock == math.MaxUint64 {
		return ok("Programs can lock enough memory.")
	}
	return []Finding{{
		Severity: Info, Message: fmt.Sprintf("%s may lock only %s of memory.", capital(l.of()), bytesText(l.MemoryLock)),
		Affects: "programs in instances that lock memory, such as databases", Fix: l.setLimit("memlock", "LimitMEMLOCK="+wantedMemoryLock),
	}}
}

// capital returns a text with a capital first letter, unless it is a name with a dot or a digit.
func capital(s string) string {
	if s == "" || strings.ContainsAny(strings.Fields(s)[0], ".0123456789") {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
