package process

import (
	"context"
	"os"
	"path/filepath"

	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/shim/launch"
)

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
