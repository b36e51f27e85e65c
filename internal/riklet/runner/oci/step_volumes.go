package oci

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/projected"
	"rik.dev/rik/internal/riklet/runner/engine"
)

// sharedMemoryBytes is the size of /dev/shm, the same as Docker's default.
const sharedMemoryBytes = 64 << 20

// volumes creates the sources of an instance's volumes.
func (e *pods) volumes(ctx context.Context, in instance.Instance) error {
	err := mounts.Tmpfs(e.dirs.shared(in.UID), "mode=1777", sharedMemoryBytes, unix.MS_NOEXEC)
	if err != nil {
		return err
	}
	for _, v := range in.Template.Volumes {
		if err := e.volume(ctx, in, v); err != nil {
			return fmt.Errorf("volume %q: %w", v.Name, err)
		}
	}
	return nil
}

func (e *pods) volume(ctx context.Context, in instance.Instance, v rikv1alpha1.Volume) error {
	switch {
	case v.EmptyDir != nil && v.EmptyDir.InMemory:
		return mounts.Tmpfs(e.dirs.memoryVolume(in.UID, v.Name), "mode=0777", memoryVolumeBytes(in.Template, v.EmptyDir.SizeLimitBytes), 0)
	case v.EmptyDir != nil:
		dir := e.dirs.diskVolume(in.UID, v.Name)
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
		return os.Chmod(dir, 0o777)
	case v.HostPath != nil:
		return hostPath(*v.HostPath)
	case v.ConfigMap != nil || v.Secret != nil:
		return e.objectVolume(ctx, in, v)
	default:
		return &engine.ConfigError{Err: errors.New("has no source")}
	}
}

// memoryVolumeBytes returns the size of an emptyDir in memory. As in kubelet, it is the volume's
// limit, but at most the memory limits of all containers together. 0 means the kernel's default,
// which is half of the machine's memory.
func memoryVolumeBytes(t rikv1alpha1.InstanceTemplate, limit int64) int64 {
	total := int64(0)
	for _, c := range t.Processes() {
		memory := c.Resources.Limits.Bytes(rikv1alpha1.ResourceMemory)
		if memory == 0 {
			return limit
		}
		total += memory
	}
	if limit == 0 {
		return total
	}
	return min(limit, total)
}

func hostPath(v rikv1alpha1.HostPathVolume) error {
	if !filepath.IsAbs(v.Path) {
		return &engine.ConfigError{Err: fmt.Errorf("path %q is not absolute", v.Path)}
	}
	if v.Create {
		return os.MkdirAll(v.Path, 0o755)
	}
	if _, err := os.Stat(v.Path); err != nil {
		return &engine.ConfigError{Err: err}
	}
	return nil
}

// removeVolumes unmounts everything that is mounted for an instance. The step "directories"
// removes the instance's own directories. A hostPath stays.
func (e *pods) removeVolumes(uid string) error {
	return mounts.UnmountInside(e.dirs.RunDir(uid))
}

// objectVolume writes the keys of a ConfigMap or Secret as files.
func (e *pods) objectVolume(ctx context.Context, in instance.Instance, v rikv1alpha1.Volume) error {
	files, mode, err := e.host.Files(ctx, in, v)
	if err != nil {
		return err
	}
	var all []projected.File
	for _, path := range slices.Sorted(maps.Keys(files)) {
		all = append(all, projected.File{Path: path, Mode: mode, Data: files[path]})
	}
	err = projected.Publish(e.dirs.memoryVolume(in.UID, v.Name), all)
	if errors.Is(err, unix.ENOSPC) {
		err = &engine.ConfigError{Err: fmt.Errorf("%w: the ConfigMaps and Secrets that an instance mounts may have %d MiB and %d files together, and need twice the space during an update",
			err, engine.RunDirBytes>>20, engine.RunDirInodes)}
	}
	return err
}
