package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/shim"
)

// ociEngine runs containers with an OCI runtime, on the node's own kernel.
type ociEngine struct{ d *Driver }

func (e ociEngine) validate(t rikv1alpha1.InstanceTemplate) error {
	_, err := e.d.runtimeOf(t.Runtime)
	return err
}

// before returns the step that creates the sources of the containers' mounts.
func (ociEngine) before(b *build) []lifecycle.Step {
	return []lifecycle.Step{{Name: "volumes", Do: b.volumes, Undo: b.removeVolumes}}
}

func (ociEngine) after(*build) []lifecycle.Step { return nil }

func (ociEngine) container(f *fill) []lifecycle.Step {
	o := &ociFill{fill: f}
	return []lifecycle.Step{
		{Name: stepImage, Do: o.pull},
		{Name: stepRootfs, Do: o.mount, Undo: o.unmount},
		{Name: stepBundle, Do: o.bundle, Undo: f.removeBundle},
		{Name: stepStart, Do: o.start, Undo: o.delete},
	}
}

// traces lists the containers that have a root file system or a runtime state.
func (e ociEngine) traces() ([]string, error) {
	ids, err := e.d.cfg.Images.Mounted()
	if err != nil {
		err = fmt.Errorf("listing mounted images: %w", err)
	}
	for _, r := range e.d.runtimes() {
		ids = append(ids, r.states()...)
	}
	return ids, err
}

func (e ociEngine) signal(ctx context.Context, client *shim.Client, in instance.Instance, container string, s syscall.Signal) error {
	r, err := e.d.runtimeOf(in.Template.Runtime)
	if err != nil {
		return err
	}
	if r.name == DefaultRuntime {
		return client.Signal(ctx, container, s)
	}
	// The process that the supervisor started is only a proxy for the container's process. The
	// runtime knows the real process.
	return r.kill(ctx, containerID(in.UID, container), s)
}

func (ociEngine) whole(string, []shim.Container) bool { return true }

func (ociEngine) dial(ctx context.Context, m *machine, port int32) (net.Conn, error) {
	pid, ok := m.namespaces()
	if !ok {
		return nil, instance.ErrNotRunning
	}
	return dialInside(ctx, pid, m.lastAddress(), port)
}

func (ociEngine) refresh(ctx context.Context, b *build, volumes []rikv1alpha1.Volume) error {
	var errs []error
	for _, v := range volumes {
		errs = append(errs, b.volume(ctx, v))
	}
	return errors.Join(errs...)
}

// hold freezes or thaws the containers' cgroups.
func (e ociEngine) hold(ctx context.Context, m *machine, running []string, held bool) error {
	r, err := e.d.runtimeOf(m.rec.Instance.Template.Runtime)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range running {
		errs = append(errs, r.hold(ctx, containerID(m.uid, name), held))
	}
	return errors.Join(errs...)
}

// ociFill is a fill with an OCI runtime.
type ociFill struct {
	*fill
	image  *image.Image
	rootfs string
}

func (f *ociFill) pull(ctx context.Context) error {
	auth, err := f.d.pullSecret(ctx, f.in)
	if err != nil {
		return err
	}
	f.image, err = f.d.cfg.Images.Pull(ctx, image.PullRequest{Reference: f.c.Image, Policy: f.c.ImagePullPolicy, Auth: auth})
	if err != nil {
		return err
	}
	f.note = imageNote{f.image.Digest, f.image.Config.StopSignal}
	_, err = stopSignal(f.note.StopSignal)
	return err
}

func (f *ociFill) mount(ctx context.Context) (err error) {
	f.rootfs, err = f.d.cfg.Images.Mount(ctx, f.id(), f.image)
	return err
}

func (f *ociFill) unmount(ctx context.Context) error {
	return f.d.cfg.Images.Unmount(ctx, f.id(), false)
}

func (f *ociFill) bundle(ctx context.Context) error {
	d, uid := f.d, f.in.UID
	name := userOf(f.c, f.image)
	identity, err := spec.LookUp(f.rootfs, name)
	if err != nil {
		return fmt.Errorf("looking for the user in the image: %w", err)
	}
	if s := f.c.Security; s != nil && s.RunAsNonRoot && identity.UID == 0 {
		return &configError{fmt.Errorf("runAsNonRoot is set, and the container would run as root (user %q): set a user, or use an image that names one", name)}
	}
	env, err := d.environment(ctx, f.in, f.address, f.c)
	if err != nil {
		return err
	}
	mounts, err := d.mountsOf(f.in, f.c)
	if err != nil {
		return err
	}
	b := &build{d: d, in: f.in}
	devices, err := devicesOf(f.c.Security)
	if err != nil {
		return err
	}
	s, err := spec.Build(spec.Input{
		Container: f.c, Identity: identity, Env: env, Mounts: mounts, Rootfs: f.rootfs,
		Image: spec.Image{
			Entrypoint: f.image.Config.Entrypoint, Cmd: f.image.Config.Cmd, Env: f.image.Config.Env,
			WorkingDir: f.image.Config.WorkingDir, User: f.image.Config.User, Architecture: f.image.Architecture,
		},
		Devices: devices, Hostname: b.hostname(), CgroupPath: f.cgroup(),
		NamespaceOf: f.shim.PID(), HostNetwork: f.in.Template.HostNetwork,
		HostsFile: d.podFile(uid, "hosts"), HostnameFile: d.podFile(uid, "hostname"), ResolvFile: d.podFile(uid, "resolv.conf"),
		SharedMemory: d.shared(uid), PIDs: d.cfg.PIDsPerContainer, SwapAccounting: d.swap, GroupOOMKill: d.cgroups.GroupsOOMKills(), OpenFiles: d.files, Capabilities: d.capabilities,
	})
	if err != nil {
		return err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	dir, err := f.makeBundle()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}

func userOf(c rikv1alpha1.Container, img *image.Image) string {
	if c.User != "" {
		return c.User
	}
	return img.Config.User
}

func (f *ociFill) start(ctx context.Context) error {
	d, uid := f.d, f.in.UID
	r, err := d.runtimeOf(f.in.Template.Runtime)
	if err != nil {
		return err
	}
	dir, console := d.bundle(uid, f.c.Name), ""
	if f.c.TTY {
		console = filepath.Join(d.runDir(uid), "tty."+strconv.Itoa(f.index))
	}
	pidFile, log := filepath.Join(dir, "pid"), filepath.Join(dir, "runtime.log")
	return f.fill.start(ctx, shim.Start{
		Argv: r.runArgs(f.id(), dir, pidFile, log, console), PIDFile: pidFile, RuntimeLog: log, ConsoleSocket: console,
	})
}

// delete ends and removes the container, in every runtime that may have it.
func (f *ociFill) delete(ctx context.Context) error {
	throttled := f.d.cgroups.Unthrottle(f.cgroup()) // a runtime waits a limited time
	for _, r := range f.d.runtimes() {
		if err := r.delete(ctx, f.id()); err != nil {
			return errors.Join(err, throttled)
		}
	}
	return f.removeCgroup(ctx)
}
