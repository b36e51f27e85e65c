package runner

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/state"
)

// A sandbox is what the containers of an instance share while they run: a supervisor with
// its namespaces, or a microVM. It can end in many ways: a kill, a crash, a snapshot that
// cannot be used. endLostSandbox handles all of them alike.

// endLostSandbox records that the instance's sandbox ended, with everything that ran in it. The
// instance gets a new sandbox, as its restart policy allows.
func (m *machine) endLostSandbox(reason, why string) {
	m.prepared, m.leftovers, m.attachment, m.rec.Suspended, m.dirty = false, true, nil, false, true
	for _, c := range m.containers {
		c.endProbes()
		m.endLostRun(c, reason, why)
	}
	if losesMemory(m.in.Template) {
		m.rec = initAgain(m.rec, reason, "the data that it prepared in memory was lost: "+why, m.now())
	}
}

// endLostRun records that a container ended with the sandbox.
func (m *machine) endLostRun(c *container, reason, why string) {
	if s := m.rec.Containers[c.spec.Name]; s.State == rikv1alpha1.ContainerRunning {
		m.setContainer(c.spec.Name, exited(s, 128+9, reason, why, m.now()))
	}
}

// ranWith records the ID of the writable disk with which the instance's sandbox runs. If the disk
// is not the recorded one, it is empty, so the volumes are lost.
func (m *machine) ranWith(disk, why string) {
	if disk == m.rec.Disk {
		return
	}
	was := m.rec.Disk
	m.rec.Disk, m.dirty = disk, true
	if disk == "" || was == "" && !everStarted(m.rec) || !volumesOnDisk(m.in.Template) {
		return
	}
	m.log.Warn("the volumes of a microVM are lost", "why", why)
	m.rec = withoutVolumes(m.rec, "its volumes were lost: "+why, m.now())
}

func everStarted(r state.Record) bool {
	for _, c := range r.Containers {
		if c.Attempt > 0 {
			return true
		}
	}
	return false
}

// volumesOnDisk reports whether an instance has volumes on the writable disk of its microVM.
func volumesOnDisk(t rikv1alpha1.InstanceTemplate) bool {
	return t.Virtual() && slices.ContainsFunc(t.Volumes, func(v rikv1alpha1.Volume) bool { return v.EmptyDir != nil && !v.EmptyDir.InMemory })
}

// losesMemory reports whether init containers may have prepared something that ends with the
// sandbox. That is a file in the memory of a microVM, or a setting of the network namespace or of
// the microVM's kernel. The memory volumes of other Pods belong to the node and stay.
func losesMemory(t rikv1alpha1.InstanceTemplate) bool {
	inMemory := func(v rikv1alpha1.Volume) bool { return v.EmptyDir != nil && v.EmptyDir.InMemory }
	if t.Virtual() && slices.ContainsFunc(t.Volumes, inMemory) {
		return true
	}
	if t.HostNetwork {
		return false
	}
	return slices.ContainsFunc(t.InitContainers, func(c rikv1alpha1.Container) bool {
		return c.Security != nil && (c.Security.Privileged || len(c.Security.AddCapabilities) > 0)
	})
}

// withoutVolumes returns the record of an instance whose volumes are empty again. The status of
// its ended containers contains the reason, and init containers run again first.
func withoutVolumes(r state.Record, why string, now time.Time) state.Record {
	r.Containers = maps.Clone(r.Containers)
	for _, c := range r.Instance.Template.Processes() {
		if s, ok := r.Containers[c.Name]; ok && s.State == rikv1alpha1.ContainerExited && s.Last != nil {
			s.Last = s.Last.DeepCopy()
			s.Last.Reason, s.Last.Message = reasonVolumesLost, joined(s.Last.Message, why)
			s.Reason, s.Message = s.Last.Reason, s.Last.Message
			r.Containers[c.Name] = s
		}
	}
	return initAgain(r, reasonVolumesLost, why, now)
}

func joined(message, why string) string {
	if message == "" {
		return why
	}
	return message + "; " + why
}

// initAgain returns the record of an instance whose init containers have to run again, because
// something that they prepared is lost. If the restart policy is Never, such a container has
// failed instead. Nothing changes if the other containers have all ended for good.
func initAgain(r state.Record, reason, why string, now time.Time) state.Record {
	t := r.Instance.Template
	if r.Terminated || r.Stop != nil || r.Final != nil || allSucceeded(t.Processes(), r.Containers, t.RestartPolicy) {
		return r
	}
	r.Containers = maps.Clone(r.Containers)
	for _, c := range t.InitContainers {
		old, ok := r.Containers[c.Name]
		if !ok || old.State != rikv1alpha1.ContainerExited || !succeeded(containerView{Container: old}) {
			continue
		}
		lost := exited(old, 128+9, reason, why, now)
		if t.RestartPolicy == rikv1alpha1.RestartNever {
			r.Containers[c.Name] = lost
			continue
		}
		r.Containers[c.Name] = state.Container{Attempt: old.Attempt, Restarts: old.Restarts, ImageDigest: old.ImageDigest, Last: lost.Last}
	}
	return r
}

// vmEnded handles the end of the VMM. Everything in the guest ended with it.
func (m *machine) vmEnded(e shim.Container) {
	if m.rec.Stop != nil || m.rec.Final != nil || !m.prepared {
		return
	}
	why := "the microVM ended"
	if m.d.cgroups.OOMKills(m.d.cgroup(m.uid)+"/"+engine.VMM) > 0 {
		why = "the VMM used more memory than its limit"
	}
	m.log.Warn("the VMM ended; the microVM starts again", "code", e.ExitCode, "why", why)
	m.disconnect()
	m.endLostSandbox(reasonVMEnded, why)
}

// recordLost is the message of containers whose instance's record was lost.
const recordLost = "the node lost its record of the instance and ended its containers"

// runsOf reads the traces of container runs that an instance without a record left.
func (d *Driver) runsOf(uid string) map[string]state.Container {
	runs := map[string]state.Container{}
	for _, name := range d.namesOfRuns(uid) {
		attempt, end := d.paths.LastRun(uid, name)
		if attempt < 1 {
			continue
		}
		c := state.Container{State: rikv1alpha1.ContainerRunning, Attempt: attempt, Restarts: int32(attempt - 1)}
		if end != nil && end.Attempt >= attempt {
			reason := reasonError
			if end.ExitCode == 0 {
				reason = reasonCompleted
			}
			c.StartedAt = end.StartedAt
			c = exited(c, int32(end.ExitCode), reason, end.Message, end.FinishedAt)
		}
		runs[name] = c
	}
	return runs
}

// namesOfRuns lists the containers that left traces, of an instance without a record.
func (d *Driver) namesOfRuns(uid string) []string {
	names, err := d.containersOf(instance.Instance{UID: uid})
	if err != nil {
		d.cfg.Logger.Warn("listing the traces of containers failed", "instance", uid, "err", err)
	}
	ends, err := os.ReadDir(filepath.Dir(d.paths.ExitFile(uid, "")))
	if err == nil {
		for _, e := range ends {
			names = append(names, strings.TrimSuffix(e.Name(), ".json"))
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == engine.VMM || !engine.ValidName(name) })
}

// afterRecordLoss returns a new record for an instance whose record was lost, from the traces of
// its runs. Its volumes are gone, so it starts with its init containers, unless its containers
// have ended for good. If the restart policy is Never, a container that was running has failed
// instead.
func afterRecordLoss(r state.Record, runs map[string]state.Container, now time.Time) state.Record {
	r.Containers = map[string]state.Container{}
	for _, c := range engine.Containers(r.Instance.Template) {
		run, ok := runs[c.Name]
		if !ok {
			continue
		}
		if run.State == rikv1alpha1.ContainerRunning {
			lost := exited(run, 128+9, reasonRecordLost, recordLost, now)
			run = state.Container{Attempt: run.Attempt, Restarts: run.Restarts, Last: lost.Last}
			if r.Instance.Template.RestartPolicy == rikv1alpha1.RestartNever {
				run = lost
			}
		}
		r.Containers[c.Name] = run
	}
	return initAgain(r, reasonRecordLost, recordLost, now)
}
