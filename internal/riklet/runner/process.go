package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/archive"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/launch"
)

// errRootApp is returned for an App that would run as root. Either its user or the node's
// administrator can resolve that.
var errRootApp = errors.New("the App would run as root or with a group of root's, which this node does not allow: give it another user, with a group as in 1000:1000 if it is none of the node's, or start the riklet with --allow-root-apps")

// processEngine runs Apps: plain processes on the node, each in its own cgroup, in the instance's
// network, and by default as a user that no other process has.
type processEngine struct{ d *Driver }

func (e processEngine) validate(t rikv1alpha1.InstanceTemplate) error {
	switch {
	case e.d.cfg.Archives == nil:
		return errors.New("this node does not run Apps")
	case t.App == nil:
		return errors.New("an App says what it runs")
	case len(t.Containers)+len(t.InitContainers)+len(t.Volumes) > 0:
		return errors.New("an App has neither containers nor volumes")
	}
	return nil
}

// before returns the step for what outlives a restart of the process: the App's files.
func (e processEngine) before(b *build) []lifecycle.Step {
	return []lifecycle.Step{{Name: "files", Undo: func(context.Context) error {
		if err := mounts.Unmount(e.d.appDir(b.in.UID)); err != nil {
			return err
		}
		if e.d.cfg.Archives == nil {
			return nil
		}
		return e.d.cfg.Archives.Release(b.in.UID)
	}}}
}

func (processEngine) after(*build) []lifecycle.Step { return nil }

func (processEngine) container(f *fill) []lifecycle.Step {
	p := &processFill{fill: f}
	return []lifecycle.Step{
		{Name: stepImage, Do: p.fetch},
		{Name: stepRootfs, Do: p.files, Undo: p.removeFiles},
		{Name: stepBundle, Do: p.bundle, Undo: f.removeBundle},
		{Name: stepStart, Do: p.start, Undo: f.removeCgroup},
	}
}

// traces lists the Apps that have files.
func (e processEngine) traces() ([]string, error) {
	if e.d.cfg.Archives == nil {
		return nil, nil
	}
	users, err := e.d.cfg.Archives.Users()
	for i := range users {
		users[i] = containerID(users[i], rikv1alpha1.AppContainer)
	}
	return users, err
}

func (processEngine) signal(ctx context.Context, client *shim.Client, _ instance.Instance, container string, s syscall.Signal) error {
	return client.Signal(ctx, container, s)
}

func (processEngine) whole(string, []shim.Container) bool { return true }

func (processEngine) dial(ctx context.Context, m *machine, port int32) (net.Conn, error) {
	return ociEngine{}.dial(ctx, m, port)
}

func (processEngine) refresh(context.Context, *build, []rikv1alpha1.Volume) error { return nil }

func (e processEngine) hold(_ context.Context, m *machine, running []string, held bool) error {
	var errs []error
	for _, name := range running {
		errs = append(errs, e.d.cgroups.Freeze(e.d.cgroup(m.uid)+"/"+name, held))
	}
	return errors.Join(errs...)
}

func (e processEngine) exec(ctx context.Context, m *machine, name string, o instance.ExecOptions) (int, error) {
	var note processNote
	if err := readJSON(e.d.processFile(m.uid, name), &note); err != nil {
		return 0, fmt.Errorf("%w: %w", instance.ErrNotRunning, err)
	}
	p := note.Process
	p.Argv = o.Command
	if o.TTY && !hasVariable(p.Env, termName) {
		p.Env = append(slices.Clone(p.Env), defaultTerm)
	}
	if p.NamespacesOf, _ = m.namespaces(); p.NamespacesOf == 0 && !m.rec.Instance.Template.HostNetwork {
		return 0, instance.ErrNotRunning
	}
	x := &execution{o: o, cmd: launch.Command(e.d.cfg.Shim, p)}
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	x.cmd.WaitDelay = stuckCommand
	x.refused = func() (int, error, bool) { return 0, nil, false }
	started := make(chan struct{})
	x.start = func() error {
		defer close(started)
		return launch.Start(x.cmd)
	}
	defer context.AfterFunc(ctx, func() {
		if <-started; x.cmd.Process != nil {
			killSession(x.cmd.Process.Pid)
		}
	})()
	code, err := x.doOrLeave(ctx)
	if failure, ok := errors.AsType[*launch.Failure](err); ok && failure.Code != launch.CodeFailed {
		if o.Stderr != nil {
			fmt.Fprintln(o.Stderr, failure.Text)
		}
		return failure.Code, nil
	}
	return code, err
}

// processNote is what a command that is executed in an App needs to know about the App.
type processNote struct{ Process launch.Process }

func (d *Driver) processFile(uid, name string) string {
	return filepath.Join(d.bundle(uid, name), "process.json")
}

// appDir is where an App's files are mounted. appUpper contains what the App writes over them.
func (d *Driver) appDir(uid string) string   { return filepath.Join(d.runDir(uid), "app") }
func (d *Driver) appUpper(uid string) string { return filepath.Join(d.rootDir(uid), "app") }

// firstUser is the first of the user IDs that each belong to one instance. By convention, no one
// else uses the IDs from 0x70000000 up (systemd, Users, Groups, UIDs and GIDs). The user ID of an
// instance is firstUser plus the PID of its supervisor, which is unique while the instance runs.
const firstUser = 0x70000000

func userOfInstance(supervisor int) uint32 { return firstUser + uint32(supervisor) } //nolint:gosec // at most 2^22, see proc(5)

// processFill is a fill that starts a plain process.
type processFill struct {
	*fill
	tree *archive.Tree
	user spec.User
	dir  string
	env  []string
}

func (f *processFill) fetch(ctx context.Context) (err error) {
	app := f.in.Template.App
	f.tree, err = f.d.cfg.Archives.Get(ctx, f.in.UID, archive.Request{Repo: app.Repo, Version: app.Version})
	if err == nil {
		f.note = imageNote{Digest: f.tree.Digest}
	}
	return err
}

// files mounts the App's own view of an archive's files, which belong to the App's user there. A
// directory of the node is used as it is.
func (f *processFill) files(ctx context.Context) (err error) {
	if f.user, err = f.findUser(); err != nil {
		return err
	}
	if f.tree.Digest == "" {
		f.dir = f.tree.Dir
		return nil
	}
	f.dir = f.d.appDir(f.in.UID)
	upper, work := filepath.Join(f.d.appUpper(f.in.UID), "upper"), filepath.Join(f.d.appUpper(f.in.UID), "work")
	for _, dir := range []string{f.dir, upper, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // below a 0700 directory
			return err
		}
	}
	// With metacopy, a change of the owner copies no content. The content is copied when the App
	// first writes to the file (Documentation/filesystems/overlayfs.rst).
	options := "lowerdir=" + f.tree.Dir + ",upperdir=" + upper + ",workdir=" + work + ",metacopy=on"
	if err := unix.Mount("overlay", f.dir, "overlay", unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		return &os.PathError{Op: "mount overlay", Path: f.dir, Err: err}
	}
	return giveAll(ctx, f.dir, f.user)
}

// giveAll makes a user the owner of a file tree, as if the user had unpacked it. It does not
// follow links.
func giveAll(ctx context.Context, dir string, to spec.User) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		return os.Lchown(path, int(to.UID), int(to.GID)) //nolint:gosec // no other process uses the files yet
	})
}

func (f *processFill) removeFiles(context.Context) error {
	if err := mounts.Unmount(f.d.appDir(f.in.UID)); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(f.d.appDir(f.in.UID)), os.RemoveAll(f.d.appUpper(f.in.UID)))
}

// findUser returns a user of the node, by name or number, or otherwise a user that only this
// instance has.
func (f *processFill) findUser() (spec.User, error) {
	if f.c.User == "" {
		id := userOfInstance(f.shim.PID())
		return spec.User{UID: id, GID: id}, nil
	}
	u, err := spec.LookUp("/", f.c.User)
	if err != nil {
		return u, fmt.Errorf("looking for the user on the node: %w", err)
	}
	if (u.UID == 0 || u.GID == 0 || slices.Contains(u.Groups, 0)) && !f.d.cfg.AllowRootApps {
		return u, errRootApp
	}
	return u, nil
}

func (f *processFill) bundle(ctx context.Context) error {
	env, err := f.d.environment(ctx, f.in, f.address, f.c)
	if err != nil {
		return err
	}
	b := &build{d: f.d, in: f.in}
	f.env = spec.Environment(spec.Input{
		Container: f.c, Env: env, Hostname: b.hostname(), Image: spec.Image{Env: []string{"HOME=" + f.seenDir()}},
	})
	_, err = f.makeBundle()
	return err
}

// seenDir is where the App itself sees its files. The directories around the real location
// contain secrets of other instances, so the App cannot see them.
func (f *processFill) seenDir() string {
	if f.tree.Digest == "" {
		return f.dir
	}
	return filepath.Join(f.d.cfg.Run, runApp)
}

// binds returns the bind mounts of an App: its files and, if it has its own network, the hosts
// and resolv.conf files of that network.
func (f *processFill) binds() []launch.Bind {
	var list []launch.Bind
	if dir := f.seenDir(); dir != f.dir {
		list = append(list, launch.Bind{Source: f.dir, Target: dir})
	}
	if f.in.Template.HostNetwork {
		return list
	}
	for _, name := range []string{"hosts", "resolv.conf"} {
		if _, err := os.Stat(filepath.Join("/etc", name)); err == nil { // a mount target
			list = append(list, launch.Bind{Source: f.d.podFile(f.in.UID, name), Target: filepath.Join("/etc", name)})
		}
	}
	return list
}

func (f *processFill) start(ctx context.Context) error {
	argv, err := spec.Command(f.c, spec.Image{}, f.env)
	if err != nil {
		return err
	}
	limits := f.c.Resources.Limits
	procs, err := f.d.cgroups.Create(f.cgroup(), cgroup.Limits{
		MemoryBytes: limits.Bytes(rikv1alpha1.ResourceMemory), MilliCPU: limits.MilliCPU(), PIDs: f.d.pids(),
	})
	if err != nil {
		return err
	}
	p := launch.Process{
		Argv: argv, Env: f.env, Dir: f.seenDir(), UID: f.user.UID, GID: f.user.GID, Groups: f.user.Groups,
		Root: f.d.cfg.AllowRootApps, Cgroups: procs, OpenFiles: f.d.files,
		Hide: f.d.cfg.Run, Binds: f.binds(),
	}
	if err := writeJSON(f.d.processFile(f.in.UID, f.c.Name), processNote{p}); err != nil {
		return err
	}
	return f.fill.start(ctx, shim.Start{Process: &p})
}

func (d *Driver) pids() int64 {
	if d.cfg.PIDsPerContainer > 0 {
		return d.cfg.PIDsPerContainer
	}
	return spec.DefaultPIDs
}
