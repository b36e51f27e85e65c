package runner

import (
	"context"
	"net"
	"syscall"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/shim"
)

// engine creates the processes of an instance and connects to them. There is one engine for each
// kind of isolation. The machine does the rest: it decides when to start a container and handles
// its end. An engine keeps nothing about an instance in memory that it cannot find again under
// the instance's names. Its methods may be called from any goroutine.
type engine interface {
	// validate returns why this engine cannot run the instance, or nil if it can.
	validate(t rikv1alpha1.InstanceTemplate) error
	// before returns the steps before the supervisor's step, and after returns the steps after
	// the instance is on the network. Their Undo needs only the UID.
	before(b *build) []lifecycle.Step
	after(b *build) []lifecycle.Step
	// container returns the steps of one attempt to start a container. The first step fetches the
	// image or archive, which may take long.
	container(f *fill) []lifecycle.Step
	// traces lists the containers, by containerID, that may have left something on the node.
	traces() ([]string, error)
	// whole reports whether the supervisor that was found after a restart still has everything
	// that the instance's containers need. seen is the list of containers that the supervisor
	// reports.
	whole(uid string, seen []shim.Container) bool
	// signal sends a signal to a container's first process.
	signal(ctx context.Context, client *shim.Client, in instance.Instance, container string, s syscall.Signal) error
	// exec runs a command next to a container's processes.
	exec(ctx context.Context, m *machine, container string, o instance.ExecOptions) (int, error)
	// dial connects to a TCP port of the instance, as its own processes do.
	dial(ctx context.Context, m *machine, port int32) (net.Conn, error)
	// refresh writes the mounted ConfigMaps and Secrets again.
	refresh(ctx context.Context, b *build, volumes []rikv1alpha1.Volume) error
	// hold pauses the given containers if held is true, and resumes them otherwise. It is
	// idempotent.
	hold(ctx context.Context, m *machine, running []string, held bool) error
}

// engineOf returns the engine for a template. It returns nil if this node has no engine for it,
// or if the template is empty.
func (d *Driver) engineOf(t rikv1alpha1.InstanceTemplate) engine {
	switch {
	case t.Kind == rikv1alpha1.KindApp:
		return processEngine{d}
	case t.Virtual():
		return vmEngine{d}
	case (t.Kind == "" || t.Kind == rikv1alpha1.KindPod) && len(t.Containers) > 0:
		return ociEngine{d}
	default:
		return nil
	}
}

// engines returns all engines of the node.
func (d *Driver) engines() []engine { return []engine{ociEngine{d}, processEngine{d}, vmEngine{d}} }

// enginesOf returns the engines that may have created something for an instance. If only the
// instance's UID is known, these are all engines.
func (d *Driver) enginesOf(in instance.Instance) []engine {
	if e := d.engineOf(in.Template); e != nil {
		return []engine{e}
	}
	return d.engines()
}
