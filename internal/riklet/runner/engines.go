package runner

import (
	"context"
	"io/fs"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/microvm"
	"rik.dev/rik/internal/riklet/runner/oci"
	"rik.dev/rik/internal/riklet/runner/process"
	"rik.dev/rik/internal/riklet/runner/spec"
)

// newEngines returns the engines of a node, one for each kind of isolation.
func newEngines(d *Driver) []*engine.Engine {
	h := engineHost{d}
	return []*engine.Engine{
		oci.New(h, d.paths, oci.Config{Images: d.cfg.Images, Runc: d.cfg.Runc, Runtimes: d.cfg.Runtimes}),
		process.New(h, d.cfg.Archives, d.cfg.AllowRootApps),
		microvm.New(h, d.cfg.Images, d.cfg.VM),
	}
}

// engineOf returns the engine for a template. It returns nil if this node has no engine for it,
// or if the template is empty.
func (d *Driver) engineOf(t rikv1alpha1.InstanceTemplate) *engine.Engine {
	for _, e := range d.engines {
		if e.Runs(t) {
			return e
		}
	}
	return nil
}

// enginesOf returns the engines that may have created something for an instance. If only the
// instance's UID is known, these are all engines.
func (d *Driver) enginesOf(in instance.Instance) []*engine.Engine {
	if e := d.engineOf(in.Template); e != nil {
		return []*engine.Engine{e}
	}
	return d.engines
}

// engineHost is the Driver as engines see it.
type engineHost struct{ d *Driver }

var _ engine.Host = engineHost{}

func (h engineHost) Node() engine.Node { return h.d.node() }

// node returns the facts of the node.
func (d *Driver) node() engine.Node {
	pids := d.cfg.PIDsPerContainer
	if pids <= 0 {
		pids = spec.DefaultPIDs
	}
	return engine.Node{
		Paths: d.paths, Shim: d.cfg.Shim, Logger: d.cfg.Logger, LogLimits: d.cfg.LogLimits, PIDs: pids, HealthTimeout: d.cfg.HealthTimeout,
		Cgroups:        engine.Cgroups{Layout: d.cgroups, Parent: d.cfg.CgroupParent},
		SwapAccounting: d.swap, OpenFiles: d.files, Capabilities: d.capabilities,
	}
}

func (h engineHost) Environment(ctx context.Context, in instance.Instance, address string, c rikv1alpha1.Container) ([]spec.EnvVar, error) {
	return h.d.environment(ctx, in, address, c)
}

func (h engineHost) PullSecret(ctx context.Context, in instance.Instance) ([]byte, error) {
	return h.d.pullSecret(ctx, in)
}

func (h engineHost) Files(ctx context.Context, in instance.Instance, v rikv1alpha1.Volume) (map[string][]byte, fs.FileMode, error) {
	return h.d.objectFiles(ctx, in.Namespace, v)
}
