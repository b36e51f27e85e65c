package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/shim"
)

// Attempt is one attempt to start a container. Only Node, Instance.UID and Container.Name are set
// if the steps are undone for an instance without a record.
type Attempt struct {
	Node      Node
	Instance  instance.Instance
	Container rikv1alpha1.Container
	// Index is the position of the container among all containers of the instance.
	Index int
	// Number counts the attempts from 1.
	Number int
	// Address is the instance's address. It is empty if the instance has none.
	Address    string
	Supervisor *shim.Client
	// BeforeStart is called just before the container starts. It may be nil.
	BeforeStart func() error

	// Note describes what runs. The step Image sets it.
	Note ImageNote
	// Started is what the supervisor reported about the start.
	Started shim.Container
}

// Steps are the steps of an Attempt. The runner has their order and their names: image, rootfs,
// bundle, start. A step with neither Do nor Undo is left out.
type Steps struct {
	// Image fetches the image or archive.
	Image lifecycle.Step
	// Rootfs creates the container's view of its files.
	Rootfs lifecycle.Step
	// Bundle writes the files that describe the container. Its Do calls MakeBundle, its Undo calls
	// RemoveBundle.
	Bundle lifecycle.Step
	// Start starts the container. Its Do calls Start.
	Start lifecycle.Step
}

// ImageNote is what must be known about a container's image after a crash.
type ImageNote struct{ Digest, StopSignal string }

// ID returns the container's name in runtimes and in the image store.
func (a *Attempt) ID() string { return ContainerID(a.Instance.UID, a.Container.Name) }

// Cgroup returns the container's cgroup.
func (a *Attempt) Cgroup() string {
	return a.Node.Cgroups.Container(a.Instance.UID, a.Container.Name)
}

// BundleDir returns the container's bundle directory.
func (a *Attempt) BundleDir() string {
	return a.Node.Paths.Bundle(a.Instance.UID, a.Container.Name)
}

// MakeBundle creates the container's bundle directory and writes Note there.
func (a *Attempt) MakeBundle() error {
	if err := os.MkdirAll(a.BundleDir(), 0o700); err != nil {
		return err
	}
	return WriteJSON(a.Node.Paths.ImageFile(a.Instance.UID, a.Container.Name), a.Note)
}

// RemoveBundle removes the container's bundle directory.
func (a *Attempt) RemoveBundle(context.Context) error { return os.RemoveAll(a.BundleDir()) }

// startTimeout bounds the wait for the supervisor's answer to a start. The wait continues even if
// the instance is stopped meanwhile, because it must be known what the start created. A start
// that hangs is canceled here or by the runner.
const startTimeout = 3 * time.Minute

var errNoStart = fmt.Errorf("it did not start within %v", startTimeout)

// Start sends the start order to the supervisor. The engine supplies what to run.
func (a *Attempt) Start(ctx context.Context, order shim.Start) (err error) {
	if a.BeforeStart != nil {
		if err := a.BeforeStart(); err != nil {
			return err
		}
	}
	p, uid, name := a.Node.Paths, a.Instance.UID, a.Container.Name
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), startTimeout, errNoStart)
	defer cancel()
	order.Container, order.Attempt = name, a.Number
	order.LogDir, order.LogLimits = p.LogDir(uid, name), a.Node.LogLimits
	order.MarkFile, order.ExitFile = p.MarkFile(uid, name), p.ExitFile(uid, name)
	a.Started, err = a.Supervisor.Start(ctx, order)
	if errors.Is(err, errNoStart) {
		Cancel(context.WithoutCancel(ctx), a.Supervisor, name)
	}
	return err
}

// RemoveCgroup kills what still runs in the container's cgroup, and removes the cgroup.
func (a *Attempt) RemoveCgroup(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, EndTimeout)
	defer cancel()
	return a.Node.Cgroups.Destroy(ctx, a.Cgroup())
}

// Cancel cancels a start that is under way. The runner then undoes the start, as after any failed
// start.
func Cancel(ctx context.Context, client *shim.Client, container string) {
	ctx, cancel := context.WithTimeout(ctx, cancelTimeout)
	defer cancel()
	_ = client.Signal(ctx, container, syscall.SIGKILL) // an error: nothing to cancel
}

// cancelTimeout bounds the wait for a supervisor that only has to send a signal.
const cancelTimeout = 10 * time.Second
