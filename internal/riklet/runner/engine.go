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

// engine makes the processes of an instance and reaches them: it is how they are
// isolated. All else, when to start what and what became of it, is the machine's.
// An engine keeps nothing of an instance in memory that could not be found again
// under the instance's names, and its methods may be called from any goroutine.
type engine interface {
	// validate says why an instance cannot be made here, nil if it can.
	validate(t rikv1alpha1.InstanceTemplate) error
	// before are the steps ahead of the supervisor's; after those that come when
	// the instance is on the network. Their Undo needs nothing but the UID.
	before(b *build) []lifecycle.Step
	after(b *build) []lifecycle.Step
	// container are the steps of one attempt of a container. The first one fetches
	// what is to run, and may take long.
	container(f *fill) []lifecycle.Step
	// traces lists the containers, by containerID, that something may be left of.
	traces() ([]string, error)
	// whole tells whether the supervisor that was found has all that the instance's
	// containers need, by what it says that it runs.
	whole(uid string, seen []shim.Container) bool
	// signal sends a signal to a container's first process.
	signal(ctx context.Context, client *shim.Client, in instance.Instance, container string, s syscall.Signal) error
	// exec runs a command beside a container's processes.
	exec(ctx context.Context, m *machine, container string, o instance.ExecOptions) (int, error)
	// dial connects to a TCP port of the instance, as its own processes would.
	dial(ctx context.Context, m *machine, port int32) (net.Conn, error)
	// refresh writes the ConfigMaps and Secrets that are mounted anew.
	refresh(ctx context.Context, b *build, volumes []rikv1alpha1.Volume) error
	// hold stops the given containers where they are, or lets them go on. Twice is
	// once.
	hold(ctx context.Context, m *machine, running []string, held bool) error
}

// engineOf chooses; nil: this node has none for it, or nothing is known of it.
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

// engines are all that the node has.
func (d *Driver) engines() []engine { return []engine{ociEngine{d}, processEngine{d}, vmEngine{d}} }

// enginesOf are those that may have made something of an instance: all of them for
// one of which only the UID is known.
func (d *Driver) enginesOf(in instance.Instance) []engine {
	if e := d.engineOf(in.Template); e != nil {
		return []engine{e}
	}
	return d.engines()
}
