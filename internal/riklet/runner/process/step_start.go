package process

import (
	"context"
	"path/filepath"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/launch"
)

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
	return f.Start(ctx, shim.Start{Process: &p})
}

// note is what a command that is executed in an App needs to know about the App.
type note struct{ Process launch.Process }

func processFile(p engine.Paths, uid, name string) string {
	return filepath.Join(p.Bundle(uid, name), "process.json")
}
