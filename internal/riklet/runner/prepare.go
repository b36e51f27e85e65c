package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/progress"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/shim"
)

// prepareStep creates what all containers of the instance share. Meanwhile the record becomes
// durable, before any container starts.
func (m *machine) prepareStep() time.Time {
	if m.prepare.active {
		return time.Time{}
	}
	if m.prepare.retryAt.After(m.now()) {
		return m.prepare.retryAt
	}
	if why := m.d.networkReady(m.rec.Instance.Template); why != nil && !m.leftovers {
		m.waitForNetwork(why)
		return m.prepare.retryAt
	}
	m.prepare.active = true
	m.starts++
	m.pulling = ""
	b := &build{d: m.d, clean: !m.leftovers, Sandbox: engine.Sandbox{Instance: m.rec.Instance, Report: func(p progress.Progress) {
		m.post(func() {
			if m.prepare.active {
				m.pulling = p.String()
			}
		})
	}}}
	if m.rec.OnDisk {
		b.Restore, b.Kept = true, m.kept()
	}
	rec, leftovers := m.snapshot(), m.leftovers
	m.dirty = false
	ctx := m.startCtx
	m.task(func() func() {
		err := b.run(ctx, leftovers, func() error { return m.d.store.Put(rec) })
		return func() { m.preparedWith(b, err) }
	})
	return time.Time{}
}

func (m *machine) preparedWith(b *build, err error) {
	m.starts--
	m.prepare.active, m.pulling = false, ""
	if b.Supervisor != nil && err != nil {
		_ = b.Supervisor.Close() // Undo removes the supervisor
	}
	if err == nil {
		m.hangUp()
		m.attach(b.Supervisor)
		m.prepared, m.leftovers, m.prepare, m.trouble, m.reason = true, false, attempts{}, "", ""
		m.attachment = b.Attachment
		m.ranWith(b.Disk, b.DiskWhy)
		if b.Restore {
			m.goesOn(b)
		}
		return
	}
	m.leftovers = !b.clean
	if b.Restore {
		m.notRestored(err)
		return
	}
	if m.startCtx.Err() != nil {
		return
	}
	if errors.Is(err, instance.ErrNetworkNotReady) {
		m.waitForNetwork(err)
		return
	}
	m.prepare.failed(m.now(), longestDelay)
	m.trouble, m.reason = err.Error(), m.prepareReason(err)
	m.log.Warn("instance could not be prepared", "step", lifecycle.StepOf(err), "err", err)
	if m.rec.Instance.Template.RestartPolicy == rikv1alpha1.RestartNever || m.permanent(err) {
		m.finish(outcome{rikv1alpha1.InstanceFailed, m.reason, err.Error()})
	}
}

// prepareReason returns the status reason for a failed preparation.
func (m *machine) prepareReason(err error) string {
	_, config := errors.AsType[*engine.ConfigError](err)
	switch {
	case config:
		return reasonConfig
	case lifecycle.StepOf(err) == stepImage && m.permanent(err):
		return reasonInvalidImage
	case lifecycle.StepOf(err) == stepImage:
		return reasonImagePull
	default:
		return reasonPrepare
	}
}

// build creates what the containers of an instance share.
type build struct {
	engine.Sandbox
	d     *Driver
	clean bool // nothing remains from an earlier run
}

func (b *build) run(ctx context.Context, leftovers bool, save func() error) error {
	defer b.End()
	if leftovers {
		// What was learned about the last run must be durable before its traces are removed.
		if err := save(); err != nil {
			return err
		}
		what := processes
		if b.Restore {
			what = allButSnapshot
		}
		if err := b.d.takeBack(ctx, b.Instance, what); err != nil {
			return err
		}
		b.clean = true
		if err := b.d.networkReady(b.Instance.Template); err != nil {
			return err
		}
	}
	b.clean = false
	saved := make(chan error, 1)
	go func() { saved <- save() }()
	err := b.sequence().Do(ctx)
	return errors.Join(err, <-saved)
}

const stepSupervisor = "supervisor"

func (b *build) sequence() lifecycle.Sequence {
	steps := []lifecycle.Step{{Name: "directories", Do: b.directories, Undo: b.removeDirectories}}
	for _, e := range b.d.enginesOf(b.Instance) {
		if storage := e.Prepare(&b.Sandbox).Storage; storage.Name != "" {
			steps = append(steps, storage)
		}
	}
	return lifecycle.Sequence{Hook: b.d.cfg.Hook, Steps: append(steps, b.processes()...)}
}

// processes returns the steps whose results end with the instance's processes.
func (b *build) processes() []lifecycle.Step {
	steps := []lifecycle.Step{
		{Name: "cgroup", Do: b.weigh}, // takeBack removes it first
		{Name: stepSupervisor, Do: b.supervisor, Undo: b.endSupervisor},
		{Name: stepNetwork, Do: b.network, Undo: b.leaveNetwork},
	}
	for _, e := range b.d.enginesOf(b.Instance) {
		steps = append(steps, e.Prepare(&b.Sandbox).Sandbox...)
	}
	return steps
}

// vmmMilliCPU is the CPU weight that a VMM gets in addition to its instance's request, in
// thousandths of a processor. With it, an instance that requests nothing still boots next to busy
// instances.
const vmmMilliCPU = 100

// weigh sets the instance's CPU weight from its requests, which the scheduler reserved at its
// placement. The containers of an instance share its weight.
func (b *build) weigh(context.Context) error {
	milli := b.Instance.Template.EffectiveRequests().MilliCPU()
	if b.Instance.Template.Virtual() {
		milli += vmmMilliCPU
	}
	return b.d.cgroups.Weigh(b.d.cgroup(b.Instance.UID), milli)
}

func (b *build) directories(context.Context) error {
	d, uid := b.d, b.Instance.UID
	if err := b.ownRunDir(); err != nil {
		return err
	}
	for _, dir := range []string{
		filepath.Dir(d.paths.ExitFile(uid, "x")), filepath.Dir(d.paths.LogDir(uid, "x")),
	} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	hosts, resolv := spec.Hosts(engine.Hostname(b.Instance), ""), "# this instance has no network beyond itself\n"
	if b.Instance.Template.HostNetwork { // use the same files as the node
		resolv = engine.ReadOr(d.cfg.Resolver, resolv)
		hosts = engine.ReadOr("/etc/hosts", spec.Hosts(engine.Hostname(b.Instance), d.cfg.Node.Address))
	}
	// Containers may write to these files. The files are in a separate file system, so that
	// containers cannot fill the space of other instances or of the node.
	room := podFileBytes + roundUp(len(hosts)) + roundUp(len(resolv))
	if err := mounts.Tmpfs(d.paths.PodFile(uid, ""), fmt.Sprintf("mode=0755,nr_inodes=%d", podFileInodes), room, unix.MS_NOEXEC); err != nil {
		return err
	}
	if err := b.files(hosts, resolv); err != nil {
		return err
	}
	// The container's user must be able to enter this directory. Only root can enter its parent.
	return os.Chmod(d.paths.PodFile(uid, ""), 0o755) //nolint:gosec // below a 0700 directory
}

// ownRunDir mounts a separate file system at the instance's run directory. Thus an instance that
// fills its directory, for example with objects of many keys, does not affect other instances. A
// directory that already has files in it is used as it is.
func (b *build) ownRunDir() error {
	dir := b.d.paths.RunDir(b.Instance.UID)
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return nil
	}
	return mounts.Tmpfs(dir, fmt.Sprintf("mode=0700,nr_inodes=%d", engine.RunDirInodes), engine.RunDirBytes, 0)
}

// Limits of the files that containers see in their /etc, in addition to the size of the files
// that the node writes. The resolv.conf and hosts files of an instance have some hundred bytes.
// Those of the node may be large.
const (
	podFileBytes  = 256 << 10
	podFileInodes = 16
)

// roundUp rounds a size up to whole pages.
func roundUp(bytes int) int64 {
	page := int64(os.Getpagesize())
	return (int64(bytes) + page - 1) / page * page
}

// files writes the files that containers see in their /etc.
func (b *build) files(hosts, resolv string) error {
	texts := map[string]string{"hosts": hosts, "hostname": engine.Hostname(b.Instance) + "\n", "resolv.conf": resolv}
	for name := range texts { // containers may have filled the whole file system
		if err := os.Truncate(b.d.paths.PodFile(b.Instance.UID, name), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for name, text := range texts {
		if err := os.WriteFile(b.d.paths.PodFile(b.Instance.UID, name), []byte(text), 0o644); err != nil { //nolint:gosec // users inside read it
			return err
		}
	}
	return nil
}

func (b *build) removeDirectories(context.Context) error {
	if err := mounts.Unmount(b.d.paths.PodFile(b.Instance.UID, "")); err != nil {
		return err
	}
	dir := b.d.paths.RunDir(b.Instance.UID)
	if err := mounts.Clear(dir); err != nil { // refuses while something else is mounted in it
		return err
	}
	if err := mounts.Unmount(dir); err != nil {
		return err
	}
	return mounts.RemoveAll(dir)
}

func (b *build) supervisor(ctx context.Context) error {
	d, uid := b.d, b.Instance.UID
	c, err := shim.Run(ctx, shim.Spawn{
		Binary: d.cfg.Shim, Socket: d.paths.Socket(uid), Log: d.paths.ShimLog(uid), HostNetwork: b.Instance.Template.HostNetwork,
		Settings: shim.Settings{Hostname: engine.Hostname(b.Instance), Loopback: !b.Instance.Template.HostNetwork, Cgroups: d.shims},
	})
	if err != nil {
		return err
	}
	b.Supervisor = c
	return nil
}

func (b *build) endSupervisor(ctx context.Context) error {
	c, err := shim.Connect(ctx, b.d.paths.Socket(b.Instance.UID))
	if errors.Is(err, shim.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	polite, cancel := context.WithTimeout(ctx, engine.EndTimeout)
	defer cancel()
	if err := c.Shutdown(polite); err == nil {
		return nil
	}
	hard, cancel := context.WithTimeout(ctx, engine.EndTimeout)
	defer cancel()
	return c.Kill(hard)
}
