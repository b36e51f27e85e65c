package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/mounts"
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
	err = publishFiles(e.dirs.memoryVolume(in.UID, v.Name), files, mode)
	if errors.Is(err, unix.ENOSPC) {
		err = &engine.ConfigError{Err: fmt.Errorf("%w: the ConfigMaps and Secrets that an instance mounts may have %d MiB and %d files together, and need twice the space during an update",
			err, engine.RunDirBytes>>20, engine.RunDirInodes)}
	}
	return err
}

// publishFiles replaces the files in a directory atomically. It writes them to a new directory
// and then switches the link "..data" to it with one rename. A reader sees either all old files
// or all new files.
func publishFiles(dir string, files map[string][]byte, mode fs.FileMode) error {
	version := ".." + digest(files, mode)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, _ := os.Readlink(filepath.Join(dir, "..data"))
	if old == version {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := writeFile(filepath.Join(dir, version, name), files[name], mode); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, version), 0o755); err != nil {
		return err
	}
	if err := swapLink(version, filepath.Join(dir, "..data")); err != nil {
		return err
	}
	if err := linkNames(dir, files); err != nil {
		return err
	}
	if old != "" && strings.HasPrefix(old, "..") && filepath.IsLocal(old) {
		return os.RemoveAll(filepath.Join(dir, old))
	}
	return nil
}

func writeFile(path string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// linkNames creates the top-level names as links that lead through "..data".
func linkNames(dir string, files map[string][]byte) error {
	wanted := map[string]bool{}
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		wanted[top] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "..") && !wanted[e.Name()] {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for name := range wanted {
		if err := swapLink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func swapLink(target, path string) error {
	next := filepath.Join(filepath.Dir(path), "..new-"+filepath.Base(path))
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, path)
}

func digest(files map[string][]byte, mode fs.FileMode) string {
	h := sha256.New()
	fmt.Fprintf(h, "%o\n", mode)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(h, "%d %s %d ", len(name), name, len(files[name]))
		h.Write(files[name])
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}
