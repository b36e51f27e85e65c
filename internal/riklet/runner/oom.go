package runner

import (
	"fmt"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/state"
)

// The kernel counts the processes of a cgroup that it killed because memory was short. If the
// container's first process was not among them, the container continues or ends with its own exit
// code. Only the counter shows what happened. Every run has a new cgroup.

// oomInterval is how often the counters of running containers are read.
const oomInterval = 10 * time.Second

// codeKilled is the exit code of a process that was killed.
const codeKilled = 128 + 9

// oomKills reads the OOM kill counter of a container's current run.
func (m *machine) oomKills(container string) uint64 {
	return m.d.cgroups.OOMKills(m.d.cgroup(m.uid) + "/" + container)
}

// oomMessage describes the OOM kill of a run that has ended.
func oomMessage(code int) string {
	if code == codeKilled {
		return "it used more memory than its limit"
	}
	return fmt.Sprintf("the kernel killed some of its processes because memory was short; its first process then exited with %d", code)
}

// oomDue reads the counters when they are due, and returns when they are due again.
func (m *machine) oomDue() time.Time {
	if m.in.Template.Virtual() {
		return time.Time{} // the guest counts, and reports it when a container ends
	}
	running := false
	for _, c := range m.containers {
		running = running || c.state() == rikv1alpha1.ContainerRunning
	}
	if !running {
		return time.Time{}
	}
	if due := m.oomAt.Add(oomInterval); m.now().Before(due) && !m.oomAt.After(m.now()) {
		return due
	}
	m.oomAt = m.now()
	for _, c := range m.containers {
		s := m.rec.Containers[c.spec.Name]
		if s.State != rikv1alpha1.ContainerRunning {
			continue
		}
		if kills := m.oomKills(c.spec.Name); kills > s.OOMKills {
			m.setContainer(c.spec.Name, lostToOOM(s, kills, m.now()))
			m.log.Warn("the kernel killed processes of a container because memory was short", "container", c.spec.Name, "processes", kills-s.OOMKills)
		}
	}
	return m.oomAt.Add(oomInterval)
}

// lostToOOM records that a container lost processes and continues.
func lostToOOM(s state.Container, kills uint64, at time.Time) state.Container {
	s.Last = &rikv1alpha1.ContainerEnd{
		Reason: reasonOOMKilled, ExitCode: codeKilled, StartedAt: stamp(s.StartedAt), FinishedAt: stamp(at),
		Message: fmt.Sprintf("the kernel killed %d of its processes because memory was short; the container keeps running", kills-s.OOMKills),
	}
	s.OOMKills = kills
	return s
}
