package oci

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"

	"rik.dev/rik/internal/riklet/shim"
)

func (f *attempt) start(ctx context.Context) error {
	r, err := f.e.runtimeOf(f.Instance.Template.Runtime)
	if err != nil {
		return err
	}
	dir, console := f.BundleDir(), ""
	if f.Container.TTY {
		console = filepath.Join(f.Node.Paths.RunDir(f.Instance.UID), "tty."+strconv.Itoa(f.Index))
	}
	pidFile, log := filepath.Join(dir, "pid"), filepath.Join(dir, "runtime.log")
	return f.Start(ctx, shim.Start{
		Argv: r.runArgs(f.ID(), dir, pidFile, log, console), PIDFile: pidFile, RuntimeLog: log, ConsoleSocket: console,
	})
}

// delete ends and removes the container, in every runtime that may have it.
func (f *attempt) delete(ctx context.Context) error {
	throttled := f.Node.Cgroups.Unthrottle(f.Cgroup()) // a runtime waits a limited time
	for _, r := range f.e.runtimes() {
		if err := r.delete(ctx, f.ID()); err != nil {
			return errors.Join(err, throttled)
		}
	}
	return f.RemoveCgroup(ctx)
}
