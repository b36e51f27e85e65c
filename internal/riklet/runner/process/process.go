// Package process is the engine for Apps: it runs plain processes on the node, each in its own
// cgroup, in the instance's network, and by default as a user that no other process has.
//
// An App's files are an overlay over an unpacked archive, or a directory of the node. Its main types
// are apps, which is the engine, and attempt, which is one start of an App.
package process

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
	"rik.dev/rik/internal/riklet/runner/command"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/launch"
)

// errRoot is returned for an App that would run as root. Either its user or the node's
// administrator can resolve that.
var errRoot = errors.New("the App would run as root or with a group of root's, which this node does not allow: give it another user, with a group as in 1000:1000 if it is none of the node's, or start the riklet with --allow-root-apps")

// apps is the engine.
type apps struct {
	host     engine.Host
	archives archive.Store // nil: the node runs no Apps
	// allowRoot allows Apps to run as root if they request it.
	allowRoot bool
}

// New returns the engine for Apps. If archives is nil, the node runs no Apps. allowRoot
// allows Apps to run as root if they request it.
func New(host engine.Host, archives archive.Store, allowRoot bool) *engine.Engine {
	e := &apps{host, archives, allowRoot}
	return &engine.Engine{
		Runs:    func(t rikv1alpha1.InstanceTemplate) bool { return t.Kind == rikv1alpha1.KindApp },
		Builder: e, Sessions: e,
		Permanent: []error{archive.ErrRefused, archive.ErrTooLarge, archive.ErrNotFound, errRoot},
	}
}

func (e *apps) Validate(t rikv1alpha1.InstanceTemplate) error {
	switch {
	case e.archives == nil:
		return errors.New("this node does not run Apps")
	case t.App == nil:
		return errors.New("an App says what it runs")
	case len(t.Containers)+len(t.InitContainers)+len(t.Volumes) > 0:
		return errors.New("an App has neither containers nor volumes")
	}
	return nil
}

// Prepare returns the step for what outlives a restart of the process: the App's files.
func (e *apps) Prepare(s *engine.Sandbox) engine.Preparation {
	return engine.Preparation{Storage: lifecycle.Step{Name: "files", Undo: func(context.Context) error {
		if err := mounts.Unmount(e.appDir(s.Instance.UID)); err != nil {
			return err
		}
		if e.archives == nil {
			return nil
		}
		return e.archives.Release(s.Instance.UID)
	}}}
}

func (e *apps) Container(a *engine.Attempt) engine.Steps {
	p := &attempt{Attempt: a, e: e}
	return engine.Steps{
		Image:  lifecycle.Step{Do: p.fetch},
		Rootfs: lifecycle.Step{Do: p.files, Undo: p.removeFiles},
		Bundle: lifecycle.Step{Do: p.bundle, Undo: a.RemoveBundle},
		Start:  lifecycle.Step{Do: p.start, Undo: a.RemoveCgroup},
	}
}

// Traces lists the Apps that have files.
func (e *apps) Traces() ([]string, error) {
	if e.archives == nil {
		return nil, nil
	}
	users, err := e.archives.Users()
	for i := range users {
		users[i] = engine.ContainerID(users[i], rikv1alpha1.AppContainer)
	}
	return users, err
}

func (*apps) Find(string, []shim.Container) engine.Found {
	return engine.Found{Whole: true}
}

func (e *apps) Written(in instance.Instance) []string {
	return []string{e.appUpper(in.UID)}
}

func (e *apps) RemoveWritten(uid string) error { return mounts.RemoveAll(e.appUpper(uid)) }

func (*apps) Signal(ctx context.Context, client *shim.Client, _ instance.Instance, container string, s syscall.Signal) error {
	return client.Signal(ctx, container, s)
}

func (*apps) Dial(ctx context.Context, r engine.Running, port int32) (net.Conn, error) {
	return r.DialNetwork(ctx, port)
}

func (*apps) Refresh(context.Context, instance.Instance, []rikv1alpha1.Volume) error {
	return nil
}

func (e *apps) Hold(_ context.Context, in instance.Instance, containers []string, held bool) error {
	cgroups := e.host.Node().Cgroups
	var errs []error
	for _, name := range containers {
		errs = append(errs, cgroups.Freeze(cgroups.Container(in.UID, name), held))
	}
	return errors.Join(errs...)
}

func (*apps) Usage(engine.Running) *instance.VMUsage { return nil }

func (*apps) EndStrays(string, []string) {} // it keeps no notes about commands

func (e *apps) Exec(ctx context.Context, r engine.Running, name string, o instance.ExecOptions) (int, error) {
	node := e.host.Node()
	var saved note
	if err := engine.ReadJSON(processFile(node.Paths, r.Instance.UID, name), &saved); err != nil {
		return 0, fmt.Errorf("%w: %w", instance.ErrNotRunning, err)
	}
	p := saved.Process
	p.Argv = o.Command
	if o.TTY && !command.HasTerm(p.Env) {
		p.Env = append(slices.Clone(p.Env), command.DefaultTerm)
	}
	if p.NamespacesOf, _ = r.Namespaces(); p.NamespacesOf == 0 && !r.Instance.Template.HostNetwork {
		return 0, instance.ErrNotRunning
	}
	x := &command.Execution{Options: o, Cmd: launch.Command(node.Shim, p)}
	x.Cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	x.Cmd.WaitDelay = command.Stuck
	x.Refused = func() (int, error, bool) { return 0, nil, false }
	started := make(chan struct{})
	x.Start = func() error {
		defer close(started)
		return launch.Start(x.Cmd)
	}
	defer context.AfterFunc(ctx, func() {
		if <-started; x.Cmd.Process != nil {
			command.KillSession(x.Cmd.Process.Pid)
		}
	})()
	code, err := x.DoOrLeave(ctx)
	if failure, ok := errors.AsType[*launch.Failure](err); ok && failure.Code != launch.CodeFailed {
		if o.Stderr != nil {
			fmt.Fprintln(o.Stderr, failure.Text)
		}
		return failure.Code, nil
	}
	return code, err
}

// note is what a command that is executed in an App needs to know about the App.
type note struct{ Process launch.Process }

func processFile(p engine.Paths, uid, name string) string {
	return filepath.Join(p.Bundle(uid, name), "process.json")
}

// RunDirectory is the directory in Paths.Run where Apps see their files. It is empty on the node.
const RunDirectory = "app"

// appDir is where an App's files are mounted. appUpper contains what the App writes over them.
func (e *apps) appDir(uid string) string {
	return filepath.Join(e.host.Node().Paths.RunDir(uid), "app")
}

func (e *apps) appUpper(uid string) string {
	return filepath.Join(e.host.Node().Paths.RootDir(uid), "app")
}

// attempt is an attempt to start a plain process.
type attempt struct {
	*engine.Attempt
	e    *apps
	tree *archive.Tree
	user spec.User
	dir  string
	env  []string
}

func (f *attempt) fetch(ctx context.Context) (err error) {
	app := f.Instance.Template.App
	f.tree, err = f.e.archives.Get(ctx, f.Instance.UID, archive.Request{Repo: app.Repo, Version: app.Version})
	if err == nil {
		f.Note = engine.ImageNote{Digest: f.tree.Digest}
	}
	return err
}

// files mounts the App's own view of an archive's files, which belong to the App's user there. A
// directory of the node is used as it is.
func (f *attempt) files(ctx context.Context) (err error) {
	if f.user, err = f.findUser(); err != nil {
		return err
	}
	if f.tree.Digest == "" {
		f.dir = f.tree.Dir
		return nil
	}
	f.dir = f.e.appDir(f.Instance.UID)
	upper, work := filepath.Join(f.e.appUpper(f.Instance.UID), "upper"), filepath.Join(f.e.appUpper(f.Instance.UID), "work")
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

func (f *attempt) removeFiles(context.Context) error {
	if err := mounts.Unmount(f.e.appDir(f.Instance.UID)); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(f.e.appDir(f.Instance.UID)), os.RemoveAll(f.e.appUpper(f.Instance.UID)))
}

// findUser returns a user of the node, by name or number, or otherwise a user that only this
// instance has.
func (f *attempt) findUser() (spec.User, error) {
	if f.Container.User == "" {
		id := engine.UserOf(f.Supervisor.PID())
		return spec.User{UID: id, GID: id}, nil
	}
	u, err := spec.LookUp("/", f.Container.User)
	if err != nil {
		return u, fmt.Errorf("looking for the user on the node: %w", err)
	}
	if (u.UID == 0 || u.GID == 0 || slices.Contains(u.Groups, 0)) && !f.e.allowRoot {
		return u, errRoot
	}
	return u, nil
}

func (f *attempt) bundle(ctx context.Context) error {
	env, err := f.e.host.Environment(ctx, f.Instance, f.Address, f.Container)
	if err != nil {
		return err
	}
	f.env = spec.Environment(spec.Input{
		Container: f.Container, Env: env, Hostname: engine.Hostname(f.Instance), Image: spec.Image{Env: []string{"HOME=" + f.seenDir()}},
	})
	return f.MakeBundle()
}

// seenDir is where the App itself sees its files. The directories around the real location
// contain secrets of other instances, so the App cannot see them.
func (f *attempt) seenDir() string {
	if f.tree.Digest == "" {
		return f.dir
	}
	return filepath.Join(f.Node.Paths.Run, RunDirectory)
}

// binds returns the bind mounts of an App: its files and, if it has its own network, the hosts
// and resolv.conf files of that network.
func (f *attempt) binds() []launch.Bind {
	var list []launch.Bind
	if dir := f.seenDir(); dir != f.dir {
		list = append(list, launch.Bind{Source: f.dir, Target: dir})
	}
	if f.Instance.Template.HostNetwork {
		return list
	}
	for _, name := range []string{"hosts", "resolv.conf"} {
		if _, err := os.Stat(filepath.Join("/etc", name)); err == nil { // a mount target
			list = append(list, launch.Bind{Source: f.Node.Paths.PodFile(f.Instance.UID, name), Target: filepath.Join("/etc", name)})
		}
	}
	return list
}

func (f *attempt) start(ctx context.Context) error {
	argv, err := spec.Command(f.Container, spec.Image{}, f.env)
	if err != nil {
		return err
	}
	limits := f.Container.Resources.Limits
	procs, err := f.Node.Cgroups.Create(f.Cgroup(), cgroup.Limits{
		MemoryBytes: limits.Bytes(rikv1alpha1.ResourceMemory), MilliCPU: limits.MilliCPU(), PIDs: f.Node.PIDs,
	})
	if err != nil {
		return err
	}
	p := launch.Process{
		Argv: argv, Env: f.env, Dir: f.seenDir(), UID: f.user.UID, GID: f.user.GID, Groups: f.user.Groups,
		Root: f.e.allowRoot, Cgroups: procs, OpenFiles: f.Node.OpenFiles,
		Hide: f.Node.Paths.Run, Binds: f.binds(),
	}
	if err := engine.WriteJSON(processFile(f.Node.Paths, f.Instance.UID, f.Container.Name), note{p}); err != nil {
		return err
	}
	return f.Attempt.Start(ctx, shim.Start{Process: &p})
}
