package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
)

func (f *attempt) bundle(ctx context.Context) error {
	node, uid := f.Node, f.Instance.UID
	name := userOf(f.Container, f.image)
	identity, err := spec.LookUp(f.rootfs, name)
	if err != nil {
		return fmt.Errorf("looking for the user in the image: %w", err)
	}
	if s := f.Container.Security; s != nil && s.RunAsNonRoot && identity.UID == 0 {
		return &engine.ConfigError{Err: fmt.Errorf("runAsNonRoot is set, and the container would run as root (user %q): set a user, or use an image that names one", name)}
	}
	env, err := f.e.host.Environment(ctx, f.Instance, f.Address, f.Container)
	if err != nil {
		return err
	}
	mounted, err := f.e.mountsOf(f.Instance, f.Container)
	if err != nil {
		return err
	}
	devices, err := devicesOf(f.Container.Security)
	if err != nil {
		return err
	}
	s, err := spec.Build(spec.Input{
		Container: f.Container, Identity: identity, Env: env, Mounts: mounted, Rootfs: f.rootfs,
		Image: spec.Image{
			Entrypoint: f.image.Config.Entrypoint, Cmd: f.image.Config.Cmd, Env: f.image.Config.Env,
			WorkingDir: f.image.Config.WorkingDir, User: f.image.Config.User, Architecture: f.image.Architecture,
		},
		Devices: devices, Hostname: engine.Hostname(f.Instance), CgroupPath: f.Cgroup(),
		NamespaceOf: f.Supervisor.PID(), HostNetwork: f.Instance.Template.HostNetwork,
		HostsFile: node.Paths.PodFile(uid, "hosts"), HostnameFile: node.Paths.PodFile(uid, "hostname"), ResolvFile: node.Paths.PodFile(uid, "resolv.conf"),
		SharedMemory: f.e.dirs.shared(uid), PIDs: node.PIDs, SwapAccounting: node.SwapAccounting, GroupOOMKill: node.Cgroups.GroupsOOMKills(), OpenFiles: node.OpenFiles, Capabilities: node.Capabilities,
	})
	if err != nil {
		return err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := f.MakeBundle(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(f.BundleDir(), "config.json"), data, 0o600)
}

func (f *attempt) removeBundle(ctx context.Context) error {
	if err := mounts.UnmountAndRemove(f.e.dirs.subPaths(f.Instance.UID, f.Container.Name)); err != nil {
		return err
	}
	return f.RemoveBundle(ctx)
}

func userOf(c rikv1alpha1.Container, img *image.Image) string {
	if c.User != "" {
		return c.User
	}
	return img.Config.User
}
