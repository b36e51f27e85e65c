// Package process is the engine for Apps: it runs plain processes on the node. A process has its
// own cgroup and the instance's network. By default, no other process has its user.
//
// An App's files are an overlay over an unpacked archive, or a directory of the node. Its main
// types are apps, which is the engine, and attempt, which is one start of an App.
package process

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"syscall"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/archive"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/shim"
)

// errRoot is returned for an App that would run as root. Either its user or the node's
// administrator can resolve that.
var errRoot = errors.New("this node does not allow an App to run as root or with root's group: set another user, such as 1000:1000, or start the riklet with --allow-root-apps")

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
		// The unpacker returns the errors of package image for damaged and unknown archives.
		Permanent: []error{archive.ErrRefused, archive.ErrTooLarge, archive.ErrNotFound, image.ErrDigest, image.ErrUnsupported, errRoot},
	}
}

func (e *apps) Validate(t rikv1alpha1.InstanceTemplate) error {
	switch {
	case e.archives == nil:
		return errors.New("this node does not run Apps")
	case t.App == nil:
		return errors.New("the template of an App has no field app")
	case len(t.Containers)+len(t.InitContainers)+len(t.Volumes) > 0:
		return errors.New("an App has neither containers nor volumes")
	}
	return nil
}

// Prepare returns the step for what outlives a restart of the process: the App's files.
func (e *apps) Prepare(s *engine.Sandbox) engine.Preparation {
	return engine.Preparation{Storage: lifecycle.Step{Name: "files", Undo: func(context.Context) error { return e.releaseFiles(s.Instance.UID) }}}
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

func (*apps) EndLeftoverCommands(string, []string) {} // it keeps no notes about commands

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
