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
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/shim"
)

// prepareStep makes what all containers share. The record becomes durable
// beside it, and before any container starts.
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
	b := &build{d: m.d, in: m.rec.Instance, clean: !m.leftovers, report: func(p progress.Progress) {
		m.post(func() {
			if m.prepare.active {
				m.pulling = p.String()
			}
		})
	}}
	if m.rec.OnDisk {
		b.restore, b.kept = true, m.kept()
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
	if b.shim != nil && err != nil {
		_ = b.shim.Close() // it is taken back with the rest
	}
	if err == nil {
		m.hangUp()
		m.attach(b.shim)
		m.prepared, m.leftovers, m.prepare, m.trouble, m.reason = true, false, attempts{}, "", ""
		m.attachment = b.attachment
		m.ranWith(m.diskOf())
		if b.restore {
			m.goesOn(b)
		}
		return
	}
	m.leftovers = !b.clean
	if b.restore {
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
	m.trouble, m.reason = err.Error(), prepareReason(err)
	m.log.Warn("instance could not be prepared", "step", lifecycle.StepOf(err), "err", err)
	if m.rec.Instance.Template.RestartPolicy == rikv1alpha1.RestartNever || permanent(err) {
		m.finish(outcome{rikv1alpha1.InstanceFailed, m.reason, err.Error()})
	}
}

// prepareReason is the word for why an instance could not be prepared.
func prepareReason(err error) string {
	_, config := errors.AsType[*configError](err)
	switch {
	case config:
		return reasonConfig
	case lifecycle.StepOf(err) == stepImage && permanent(err):
		return reasonInvalidImage
	case lifecycle.StepOf(err) == stepImage:
		return reasonImagePull
	default:
		return reasonPrepare
	}
}

// configError is an error in what an instance refers to: its user's to mend.
type configError struct{ err error }

func (e *configError) Error() string { return e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// build makes what the containers of an instance share.
type build struct {
	d     *Driver
	in    instance.Instance
	clean bool // nothing is there
	// restore: the instance goes on from its snapshot, with these runs.
	restore bool
	kept    []keptRun
	// keep: its snapshot, and what that needs, is not taken back.
	keep bool

	report func(progress.Progress) // reported of a pull or a download that takes long; may be nil

	done []func() // called when the work is over, however it ended

	shim       *shim.Client // made
	attachment *instance.Attachment
}

func (b *build) run(ctx context.Context, leftovers bool, save func() error) error {
	defer func() {
		for _, f := range b.done {
			f()
		}
	}()
	if leftovers {
		// What was learned of the last run is durable before its traces go.
		if err := save(); err != nil {
			return err
		}
		what := processes
		if b.restore {
			what = allButSnapshot
		}
		if err := b.d.takeBack(ctx, b.in, what); err != nil {
			return err
		}
		b.clean = true
		if err := b.d.networkReady(b.in.Template); err != nil {
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
	for _, e := range b.d.enginesOf(b.in) {
		steps = append(steps, e.before(b)...)
	}
	return lifecycle.Sequence{Hook: b.d.cfg.Hook, Steps: append(steps, b.processes()...)}
}

// processes are the steps whose result ends with the instance's processes.
func (b *build) processes() []lifecycle.Step {
	steps := []lifecycle.Step{
		{Name: "cgroup", Do: b.weigh}, // takeBack removes it, with the processes in it, before the others
		{Name: stepSupervisor, Do: b.supervisor, Undo: b.endSupervisor},
		{Name: stepNetwork, Do: b.network, Undo: b.leaveNetwork},
	}
	for _, e := range b.d.enginesOf(b.in) {
		steps = append(steps, e.after(b)...)
	}
	return steps
}

// vmmMilliCPU are what a VMM has beyond what its instance requests, in thousandths of a
// processor: one that requests nothing boots all the same beside others that are busy.
const vmmMilliCPU = 100

// weigh has the processors shared by what instances request, as they were promised when
// they were placed; below that the containers of one share what it has.
func (b *build) weigh(context.Context) error {
	milli := b.in.Template.EffectiveRequests().MilliCPU()
	if b.in.Template.Virtual() {
		milli += vmmMilliCPU
	}
	return b.d.cgroups.Weigh(b.d.cgroup(b.in.UID), milli)
}

// hostname is the node's own for an instance that is in the node's network and asks for no other,
// as in Kubernetes.
func (b *build) hostname() string {
	if b.in.Template.HostNetwork && b.in.Template.Hostname == "" {
		if name, err := os.Hostname(); err == nil {
			return name
		}
	}
	return spec.Hostname(b.in.Template.Hostname, b.in.Name)
}

func (b *build) directories(context.Context) error {
	d, uid := b.d, b.in.UID
	if err := b.ownRunDir(); err != nil {
		return err
	}
	for _, dir := range []string{
		filepath.Dir(d.exitFile(uid, "x")), filepath.Dir(d.logDir(uid, "x")),
	} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	hosts, resolv := spec.Hosts(b.hostname(), ""), "# this instance has no network beyond itself\n"
	if b.in.Template.HostNetwork { // what the node sees
		resolv = readOr(d.cfg.Resolver, resolv)
		hosts = readOr("/etc/hosts", spec.Hosts(b.hostname(), d.cfg.Node.Address))
	}
	// Containers may write to these files. They have a file system of their own, so that they
	// take no room that other instances and the node need.
	room := podFileBytes + roundUp(len(hosts)) + roundUp(len(resolv))
	if err := tmpfs(d.podFile(uid, ""), fmt.Sprintf("mode=0755,nr_inodes=%d", podFileInodes), room, unix.MS_NOEXEC); err != nil {
		return err
	}
	if err := b.files(hosts, resolv); err != nil {
		return err
	}
	// The directory that a container sees must be enterable by its user, the
	// one around it by root alone.
	return os.Chmod(d.podFile(uid, ""), 0o755) //nolint:gosec // below a 0700 directory
}

// What the run directory of an instance may take: its sockets and notes, the specifications of
// its containers, and the files of the ConfigMaps and Secrets that it mounts, which exist twice
// while they are brought up to date.
const (
	runDirBytes  = 32 << 20
	runDirInodes = 16 << 10
)

// ownRunDir gives the instance's run directory a file system of its own: what an instance fills
// there, with objects of many keys say, is missed by no other instance. One that has something
// in it is used as it is.
func (b *build) ownRunDir() error {
	dir := b.d.runDir(b.in.UID)
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return nil
	}
	return tmpfs(dir, fmt.Sprintf("mode=0700,nr_inodes=%d", runDirInodes), runDirBytes, 0)
}

// What the files that containers see in their /etc may take beyond what the node puts there: a
// resolv.conf and a hosts file of an instance have some hundred bytes, those of the node may be
// large.
const (
	podFileBytes  = 256 << 10
	podFileInodes = 16
)

// roundUp gives whole pages.
func roundUp(bytes int) int64 {
	page := int64(os.Getpagesize())
	return (int64(bytes) + page - 1) / page * page
}

// files writes what containers see in their /etc.
func (b *build) files(hosts, resolv string) error {
	texts := map[string]string{"hosts": hosts, "hostname": b.hostname() + "\n", "resolv.conf": resolv}
	for name := range texts { // what containers of before wrote may take all of the room
		if err := os.Truncate(b.d.podFile(b.in.UID, name), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for name, text := range texts {
		if err := os.WriteFile(b.d.podFile(b.in.UID, name), []byte(text), 0o644); err != nil { //nolint:gosec // users inside read it
			return err
		}
	}
	return nil
}

func readOr(path, otherwise string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return otherwise
	}
	return string(data)
}

func (b *build) removeDirectories(context.Context) error {
	if err := mounts.Unmount(b.d.podFile(b.in.UID, "")); err != nil {
		return err
	}
	dir := b.d.runDir(b.in.UID)
	if err := mounts.Clear(dir); err != nil { // refuses while something else is mounted in it
		return err
	}
	if err := mounts.Unmount(dir); err != nil {
		return err
	}
	return mounts.RemoveAll(dir)
}

func (b *build) supervisor(ctx context.Context) error {
	d, uid := b.d, b.in.UID
	c, err := shim.Run(ctx, shim.Spawn{
		Binary: d.cfg.Shim, Socket: d.socket(uid), Log: d.shimLog(uid), HostNetwork: b.in.Template.HostNetwork,
		Settings: shim.Settings{Hostname: b.hostname(), Loopback: !b.in.Template.HostNetwork, Cgroups: d.shims},
	})
	if err != nil {
		return err
	}
	b.shim = c
	return nil
}

// endTimeout bounds the wait for the end of a process that was told to end.
const endTimeout = 30 * time.Second

func (b *build) endSupervisor(ctx context.Context) error {
	c, err := shim.Connect(ctx, b.d.socket(b.in.UID))
	if errors.Is(err, shim.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	polite, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := c.Shutdown(polite); err == nil {
		return nil
	}
	hard, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	return c.Kill(hard)
}
