package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/oci"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/state"
)

// Recover brings the node and the records into agreement after a restart or a crash.
func (d *Driver) Recover(ctx context.Context) error {
	if err := d.prepareNode(ctx); err != nil {
		return fmt.Errorf("preparing the node for instances: %w", err)
	}
	records, err := d.store.Load()
	if err != nil {
		return fmt.Errorf("reading the state: %w", err)
	}
	known := map[string]*machine{}
	var group errgroup.Group
	group.SetLimit(concurrentRecoveries)
	for _, rec := range records {
		if rec.Lost {
			d.lost[rec.Instance.UID] = rec.Containers
			continue
		}
		m := newMachine(d, rec)
		known[m.uid] = m
		group.Go(func() error { m.recover(ctx); return nil })
	}
	_ = group.Wait()
	d.keepNetwork(ctx, known)
	d.removeOrphans(ctx, known)
	for _, m := range known {
		m.publish()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range known {
		d.addLocked(m)
	}
	return nil
}

// concurrentRecoveries bounds how many supervisors are contacted at the same time.
const concurrentRecoveries = 32

// prepareNode examines the node and creates the driver's own directories and cgroups.
func (d *Driver) prepareNode(ctx context.Context) (err error) {
	if !d.cfg.AllowOldRunc {
		if err := oci.CheckRunc(ctx, d.cfg.Runc); err != nil {
			return err
		}
	}
	if d.bootID, err = state.BootID(); err != nil {
		return err
	}
	if d.cgroups, err = cgroup.Detect(); err != nil {
		return err
	}
	// As with a kubelet's Pods, all instances together have the CPU weight of the whole machine.
	if err := d.cgroups.SetWeight(d.cfg.CgroupParent, 1000*int64(runtime.NumCPU())); err != nil {
		return err
	}
	d.swap = d.cgroups.SwapAccounting()
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	d.files = files.Max
	d.capabilities = boundingSet()
	if d.shims, err = d.cgroups.Make(d.cgroup(supervisors)); err != nil {
		return err
	}
	if err := d.ownRunDirectory(); err != nil {
		return err
	}
	for _, e := range d.engines {
		for _, dir := range e.Directories {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
		}
	}
	return os.MkdirAll(d.paths.RunDir(""), 0o700)
}

// ownRunDirectory mounts a bounded tmpfs at Run. It is in memory because it contains secrets. It
// is bounded because it must not fill the machine's /run.
func (d *Driver) ownRunDirectory() error {
	occupied := func() bool {
		entries, err := os.ReadDir(d.paths.RunDir(""))
		return err == nil && len(entries) > 0
	}
	if _, err := mounts.InMemory(d.cfg.Run, mounts.RunLimits(), occupied); err != nil {
		return err
	}
	bounded, err := mounts.Bounded(d.cfg.Run)
	if err != nil {
		return err
	}
	if !bounded {
		d.cfg.Logger.Warn("the run directory is not a separate file system, because it contains instances of an earlier version; remove the instances and restart the riklet, or reboot the node",
			"directory", d.cfg.Run)
	}
	return nil
}

// boundingSet returns the capability bounding set of this process, which limits every process that
// it starts.
func boundingSet() (set spec.CapabilitySet) {
	for c := range 64 {
		held, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil {
			break // above the kernel's last capability
		}
		if held == 1 {
			set |= 1 << c
		}
	}
	return set
}

// recover finds out what happened to one instance. It runs before the machine's goroutine starts.
func (m *machine) recover(ctx context.Context) {
	if m.rec.Terminated {
		return
	}
	m.rec = correctTimes(m.rec, m.now(), m.grace())
	rebooted := m.rec.BootID != m.d.bootID
	client, err := shim.Connect(ctx, m.d.paths.Socket(m.uid))
	attachment := m.d.attachmentOf(m.uid)
	// An instance with neither a network attachment nor a container was not prepared completely.
	// An instance with containers only is from a version of rik without a network.
	finished := err == nil && (attachment != nil || !m.d.networked(m.in.Template) || len(client.Containers()) > 0)
	var found engine.Found
	if finished && !rebooted && m.engine != nil {
		found = m.engine.Find(m.uid, client.Containers())
	}
	if m.rec.OnDisk && m.recoverOnDisk(found.Whole) {
		if err == nil {
			_ = client.Close()
		}
		return
	}
	if found.Whole {
		// connected is called before run starts, because sessions can come earlier.
		m.connected(client)
		m.attachment, m.prepared = attachment, true
		m.ranWith(found.Disk, found.DiskWhy)
		m.applyReports(client.Containers())
		m.endLeftoverCommands()
		return
	}
	if err != nil && !errors.Is(err, shim.ErrGone) {
		m.log.Warn("a supervisor does not answer; its instance starts again", "err", err)
	}
	if err == nil {
		_ = client.Close()
	}
	m.leftovers, m.rec.Suspended = true, false
	m.applyExitFiles()
	if !rebooted {
		m.endLostSandbox(reasonSupervisorLost, supervisorEnded)
	}
	m.rec = afterReboot(m.rec, m.d.bootID, m.now())
	m.dirty = true
}

// endLeftoverCommands ends the commands that an earlier riklet process executed in the instance.
func (m *machine) endLeftoverCommands() {
	var names []string
	for _, c := range m.containers {
		names = append(names, c.spec.Name)
	}
	m.engine.EndLeftoverCommands(m.uid, names)
}

// applyReports applies what a supervisor reports about its containers.
func (m *machine) applyReports(seen []shim.Container) {
	there := map[string]bool{}
	for _, e := range seen {
		c := m.container(e.Name)
		if c == nil {
			continue
		}
		there[e.Name] = true
		if e.Starting {
			c.early, c.starting = nil, true // attached waits for it
			continue
		}
		m.noteRun(e)
		if e.Exited {
			m.exited(e)
		}
	}
	for _, c := range m.containers {
		if !there[c.spec.Name] {
			m.endLostRun(c, reasonSupervisorLost, supervisorEnded)
		}
	}
}

// noteRun records a run that the record does not contain yet.
func (m *machine) noteRun(e shim.Container) {
	s := m.rec.Containers[e.Name]
	if s.Attempt > e.Attempt || (s.Attempt == e.Attempt && (s.State == rikv1alpha1.ContainerExited || s.State == rikv1alpha1.ContainerRunning)) {
		return
	}
	var note engine.ImageNote
	if engine.ReadJSON(m.d.paths.ImageFile(m.uid, e.Name), &note) == nil {
		s.ImageDigest, s.StopSignal = note.Digest, note.StopSignal
	}
	s.State, s.Reason, s.Message, s.ExitCode = rikv1alpha1.ContainerRunning, "", "", nil
	s.Attempt, s.Restarts, s.StartedAt = e.Attempt, int32(e.Attempt-1), e.StartedAt
	s.Begun, s.Ready, s.OOMKills = false, false, 0
	if m.rec.StartedAt.IsZero() {
		m.rec.StartedAt = e.StartedAt
	}
	m.setContainer(e.Name, s)
}

// applyExitFiles does the same as applyReports from files, when the supervisor is gone.
func (m *machine) applyExitFiles() {
	for _, c := range m.containers {
		attempt, end := m.d.paths.LastRun(m.uid, c.spec.Name)
		if end != nil && end.Attempt >= attempt && end.Attempt > 0 {
			m.noteRun(*end)
			m.exited(*end)
			continue
		}
		if s := m.rec.Containers[c.spec.Name]; attempt == 0 && s.State == "" && s.Reason == "" {
			// The record says that a start was tried that must happen at most once. It is not
			// known whether the start happened.
			attempt, s.Attempt = s.Attempt, 0
			m.rec.Containers[c.spec.Name] = s
		}
		if attempt > 0 {
			m.noteRun(shim.Container{Name: c.spec.Name, Attempt: attempt, StartedAt: m.now()})
		}
	}
}

// attached continues with what recover found, once the machine's goroutine runs.
func (m *machine) attached() {
	if m.shim == nil {
		return
	}
	client := m.shim
	m.attach(client)
	for _, c := range m.containers {
		if c.starting {
			i := slices.IndexFunc(client.Containers(), func(e shim.Container) bool { return e.Name == c.spec.Name })
			c.join(client.Containers()[i].Attempt)
			continue
		}
		if c.state() == rikv1alpha1.ContainerRunning && !m.rec.Suspended {
			c.beginProbes()
		}
	}
}

// removeOrphans removes everything that has the driver's names and no record.
func (d *Driver) removeOrphans(ctx context.Context, known map[string]*machine) {
	for _, uid := range d.found() {
		if known[uid] != nil {
			continue
		}
		in := instance.Instance{UID: uid}
		runs := d.runsOf(uid)
		d.cfg.Logger.Warn("removing an instance without a record; it starts again if the cluster still orders it",
			"instance", uid, "containersThatRan", len(runs), "records", filepath.Join(d.cfg.Root, recordsFile))
		if len(runs) > 0 {
			if err := d.store.Put(state.Record{BootID: d.bootID, Instance: in, Containers: runs, Lost: true}); err != nil {
				d.cfg.Logger.Error("saving a record failed", "instance", uid, "err", err)
			}
			d.lost[uid] = runs
		}
		if err := d.tearDown(ctx, in, everything); err != nil {
			// The orphan becomes an instance that is being stopped. Thus the removal is retried
			// and reported until it succeeds.
			d.cfg.Logger.Warn("removing an instance without a record failed; it is tried again", "instance", uid, "err", err)
			m := newMachine(d, state.Record{BootID: d.bootID, Instance: in, Stop: &state.Stop{Deadline: d.cfg.Clock.Now()}})
			m.trouble = err.Error()
			known[uid] = m
			delete(d.lost, uid)
		}
	}
	d.killLeftoverShims(known)
}

// found lists the UIDs of everything on this node that has the driver's names.
func (d *Driver) found() []string {
	uids := map[string]bool{}
	for _, dir := range []string{d.paths.RunDir(""), d.paths.RootDir("")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			uids[e.Name()] = engine.ValidUID(e.Name())
		}
	}
	for _, name := range d.cgroups.Children(d.cfg.CgroupParent) {
		uids[name] = engine.ValidUID(name)
	}
	for _, e := range d.engines {
		ids, err := e.Traces()
		if err != nil {
			d.cfg.Logger.Warn("listing the traces of containers failed", "err", err)
		}
		for _, id := range ids {
			if uid, _, ok := engine.SplitID(id); ok {
				uids[uid] = true
			}
		}
	}
	maps.DeleteFunc(uids, func(_ string, ours bool) bool { return !ours })
	return slices.Sorted(maps.Keys(uids))
}

// killLeftoverShims ends supervisors that belong to no instance. Their sockets are gone; otherwise
// they would have been found by their sockets.
func (d *Driver) killLeftoverShims(known map[string]*machine) {
	ours := map[int]bool{}
	for _, m := range known {
		if m.shim != nil {
			ours[m.shim.PID()] = true
		}
	}
	for _, pid := range d.cgroups.Processes(d.cgroup(supervisors)) {
		if ours[pid] || ours[parentOf(pid)] {
			continue // children of a supervisor are runtimes that it calls
		}
		d.cfg.Logger.Warn("killing a supervisor without an instance", "pid", pid)
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// parentOf returns the PID of a process's parent, or 0 if the process is gone.
func parentOf(pid int) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The process name, in parentheses, may contain any character. After the last parenthesis
	// follows "state ppid ...", see proc_pid_stat(5).
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

// Purge removes every instance, its data and the driver's own files from the node. Call it after
// Recover, instead of Run.
func (d *Driver) Purge(ctx context.Context) error {
	var errs []error
	for _, m := range d.all() {
		m.disconnect()
		errs = append(errs, d.tearDown(ctx, m.in, everything), d.store.Delete(m.uid))
		d.remove(m)
	}
	d.killLeftoverShims(nil)
	d.keepNetwork(ctx, nil)
	ctx, cancel := context.WithTimeout(ctx, engine.EndTimeout)
	defer cancel()
	errs = append(errs, d.cgroups.Destroy(ctx, d.cfg.CgroupParent))
	errs = append(errs, mounts.UnmountBelow(d.cfg.Run))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.Join(mounts.Clear(d.cfg.Run), mounts.RemoveAll(d.paths.RootDir("")))
}
