package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
)

// mountsOf prepares the sources of a container's volume mounts.
func (e *pods) mountsOf(in instance.Instance, c rikv1alpha1.Container) ([]spec.Mount, error) {
	var list []spec.Mount
	for i, vm := range c.VolumeMounts {
		at := slices.IndexFunc(in.Template.Volumes, func(v rikv1alpha1.Volume) bool { return v.Name == vm.Name })
		if at < 0 {
			return nil, fmt.Errorf("%w: %q, mounted at %s", spec.ErrVolume, vm.Name, vm.MountPath)
		}
		m, err := e.mountOf(in, in.Template.Volumes[at], vm)
		if err == nil && vm.SubPath != "" {
			writable := in.Template.Volumes[at].EmptyDir != nil || in.Template.Volumes[at].HostPath != nil
			m.Source, err = subPath(m.Source, vm.SubPath, filepath.Join(e.dirs.subPaths(in.UID, c.Name), strconv.Itoa(i)), writable)
		}
		if err != nil {
			return nil, fmt.Errorf("mounting volume %q: %w", vm.Name, err)
		}
		list = append(list, m)
	}
	return list, nil
}

func (e *pods) mountOf(in instance.Instance, v rikv1alpha1.Volume, vm rikv1alpha1.VolumeMount) (spec.Mount, error) {
	m := spec.Mount{Destination: filepath.Clean("/" + vm.MountPath), ReadOnly: vm.ReadOnly}
	switch {
	case v.EmptyDir != nil && !v.EmptyDir.InMemory:
		m.Source = e.dirs.diskVolume(in.UID, v.Name)
	case v.HostPath != nil:
		m.Source, m.Devices = v.HostPath.Path, true
	default:
		m.Source = e.dirs.memoryVolume(in.UID, v.Name)
		m.ReadOnly = m.ReadOnly || v.EmptyDir == nil
	}
	if m.Destination == "/" {
		return m, &engine.ConfigError{Err: errors.New("a volume cannot replace the root directory")}
	}
	return m, nil
}

// subPath bind-mounts a path inside a volume to target, which containers cannot reach. Containers
// that write to the volume may replace parts of the path by links at any time. Therefore the
// kernel resolves the path inside the volume, and subPath mounts the descriptor that it opened.
func subPath(volume, path, target string, create bool) (string, error) {
	if !filepath.IsLocal(path) {
		return "", &engine.ConfigError{Err: fmt.Errorf("subPath %q does not stay inside the volume", path)}
	}
	root, err := os.OpenRoot(volume)
	if err != nil {
		return "", err
	}
	defer root.Close()
	if _, err := root.Stat(path); create && errors.Is(err, fs.ErrNotExist) {
		if err := mkdirLike(root, path); err != nil {
			return "", fmt.Errorf("creating subPath: %w", err)
		}
	}
	dir, err := root.Open(".")
	if err != nil {
		return "", err
	}
	defer dir.Close()
	fd, err := unix.Openat2(int(dir.Fd()), path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return "", &engine.ConfigError{Err: &os.PathError{Op: "open subPath", Path: path, Err: err}}
	}
	defer unix.Close(fd)
	return target, bindDescriptor(fd, target)
}

// mkdirLike creates the directories of a path with the mode of the volume's root, as kubelet does
// for a missing subPath. Thus a user who may write to the volume may write there.
func mkdirLike(root *os.Root, path string) error {
	volume, err := root.Stat(".")
	if err != nil {
		return err
	}
	mode := volume.Mode() & (fs.ModePerm | fs.ModeSetgid | fs.ModeSticky)
	parts := strings.Split(filepath.Clean(path), "/")
	for i := range parts {
		dir := filepath.Join(parts[:i+1]...)
		switch err := root.Mkdir(dir, mode.Perm()); {
		case errors.Is(err, fs.ErrExist):
		case err != nil:
			return err
		default:
			// Mkdir has applied the umask.
			if err := root.Chmod(dir, mode); err != nil {
				return err
			}
		}
	}
	return nil
}

func bindDescriptor(fd int, target string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := mounts.Unmount(target); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := os.MkdirAll(target, 0o700); err != nil {
			return err
		}
	} else if err := os.WriteFile(target, nil, 0o600); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: target, Err: err}
	}
	return nil
}
