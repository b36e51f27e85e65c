// Package oci is the engine for Pods: it runs containers with an OCI runtime, on the node's own
// kernel.
//
// It owns the volumes, the root file systems and the bundles of containers, and the calls of
// runtimes. Its main types are pods, which is the engine, attempt, which is one start of a
// container, and program, which is a runtime.
package oci

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim"
)

// Images is the part of the node's image store that the engine uses. *image.Store implements it.
type Images interface {
	Pull(ctx context.Context, request image.PullRequest) (*image.Image, error)
	Mount(ctx context.Context, id string, img *image.Image) (rootfs string, err error)
	Unmount(ctx context.Context, id string, keepWritable bool) error
	Mounted() ([]string, error)
	// Written returns the directory of the files that a container wrote over its image. The
	// directory may not exist.
	Written(id string) string
}

// Config configures the engine. Images and Runc are required.
type Config struct {
	Images Images
	// Runc is the default OCI runtime.
	Runc string
	// Runtimes maps the runtime names of templates to the paths of more OCI runtimes.
	Runtimes map[string]string
}

// pods is the engine.
type pods struct {
	host engine.Host
	cfg  Config
	dirs paths
}

// New returns the engine. places are the host's paths.
func New(host engine.Host, places engine.Paths, cfg Config) *engine.Engine {
	e := &pods{host, cfg, paths{places}}
	directories := []string{}
	for _, r := range e.runtimes() {
		directories = append(directories, r.root)
	}
	return &engine.Engine{
		Runs: func(t rikv1alpha1.InstanceTemplate) bool {
			return (t.Kind == "" || t.Kind == rikv1alpha1.KindPod) && !t.Virtual() && len(t.Containers) > 0
		},
		Builder: e, Sessions: e, Directories: directories,
		Permanent: []error{
			image.ErrInvalidReference, image.ErrRefused, image.ErrTooLarge, image.ErrDigest, image.ErrPlatform, image.ErrUnsupported,
		},
	}
}

func (e *pods) Validate(t rikv1alpha1.InstanceTemplate) error {
	_, err := e.runtimeOf(t.Runtime)
	return err
}

// Prepare returns the step that creates the sources of the containers' mounts.
func (e *pods) Prepare(s *engine.Sandbox) engine.Preparation {
	return engine.Preparation{Storage: lifecycle.Step{
		Name: "volumes",
		Do:   func(ctx context.Context) error { return e.volumes(ctx, s.Instance) },
		Undo: func(context.Context) error { return e.removeVolumes(s.Instance.UID) },
	}}
}

func (e *pods) Container(a *engine.Attempt) engine.Steps {
	o := &attempt{Attempt: a, e: e}
	return engine.Steps{
		Image:  lifecycle.Step{Do: o.pull},
		Rootfs: lifecycle.Step{Do: o.mount, Undo: o.unmount},
		Bundle: lifecycle.Step{Do: o.bundle, Undo: o.removeBundle},
		Start:  lifecycle.Step{Do: o.start, Undo: o.delete},
	}
}

// Traces lists the containers that have a root file system or a runtime state.
func (e *pods) Traces() ([]string, error) {
	ids, err := e.cfg.Images.Mounted()
	if err != nil {
		err = fmt.Errorf("listing mounted images: %w", err)
	}
	for _, r := range e.runtimes() {
		ids = append(ids, r.states()...)
	}
	return ids, err
}

func (*pods) Find(string, []shim.Container) engine.Found { return engine.Found{Whole: true} }

func (e *pods) Written(in instance.Instance) []string {
	places := []string{e.dirs.diskVolume(in.UID, "")}
	for _, c := range engine.Containers(in.Template) {
		places = append(places, e.cfg.Images.Written(engine.ContainerID(in.UID, c.Name)))
	}
	return places
}

// RemoveWritten removes the volumes. The step rootfs has removed what the containers wrote over
// their images.
func (e *pods) RemoveWritten(uid string) error {
	return mounts.RemoveAll(e.dirs.diskVolume(uid, ""))
}

func (e *pods) Signal(ctx context.Context, client *shim.Client, in instance.Instance, container string, s syscall.Signal) error {
	r, err := e.runtimeOf(in.Template.Runtime)
	if err != nil {
		return err
	}
	if r.name == DefaultRuntime {
		return client.Signal(ctx, container, s)
	}
	// The process that the supervisor started is only a proxy for the container's process. The
	// runtime knows the real process.
	return r.kill(ctx, engine.ContainerID(in.UID, container), s)
}

func (*pods) Dial(ctx context.Context, r engine.Running, port int32) (net.Conn, error) {
	return r.DialNetwork(ctx, port)
}

func (e *pods) Refresh(ctx context.Context, in instance.Instance, volumes []rikv1alpha1.Volume) error {
	var errs []error
	for _, v := range volumes {
		errs = append(errs, e.volume(ctx, in, v))
	}
	return errors.Join(errs...)
}

// Hold freezes or thaws the containers' cgroups.
func (e *pods) Hold(ctx context.Context, in instance.Instance, containers []string, held bool) error {
	r, err := e.runtimeOf(in.Template.Runtime)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range containers {
		errs = append(errs, r.hold(ctx, engine.ContainerID(in.UID, name), held))
	}
	return errors.Join(errs...)
}

func (*pods) Usage(engine.Running) *instance.VMUsage { return nil }

// DefaultRuntime is the name of the default OCI runtime.
const DefaultRuntime = "runc"

// RunDirectory is the directory in Paths.Run for the states of runtimes.
const RunDirectory = "runtimes"

// paths are the places of the files that only OCI containers have.
type paths struct{ engine.Paths }

func (p paths) shared(uid string) string { return filepath.Join(p.RunDir(uid), "shm") }

func (p paths) memoryVolume(uid, name string) string {
	return filepath.Join(p.RunDir(uid), "volumes", name)
}

func (p paths) diskVolume(uid, name string) string {
	return filepath.Join(p.RootDir(uid), "volumes", name)
}

func (p paths) subPaths(uid, container string) string {
	return filepath.Join(p.RunDir(uid), "subpaths", container)
}

// runtimeRoot is the directory in which a runtime keeps the state of its containers.
func (p paths) runtimeRoot(runtime string) string {
	return filepath.Join(p.Run, RunDirectory, runtime)
}

// attempt is an attempt to start a container with an OCI runtime.
type attempt struct {
	*engine.Attempt
	e      *pods
	image  *image.Image
	rootfs string
}
