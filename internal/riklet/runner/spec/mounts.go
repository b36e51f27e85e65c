package spec

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// mounts lists the kernel's file systems, and then the Pod's files and the volumes, parents
// before children. One volume may be mounted inside another, and a volume at /etc still shows the
// Pod's files.
func mounts(in Input) []specs.Mount {
	sys := []string{"nosuid", "noexec", "nodev", "ro"}
	if security(in).Privileged {
		sys = []string{"nosuid", "noexec", "nodev"}
	}
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: sys},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: sys},
	}
	files := []Mount{
		{Source: in.SharedMemory, Destination: "/dev/shm"},
		{Source: in.HostsFile, Destination: "/etc/hosts"},
		{Source: in.HostnameFile, Destination: "/etc/hostname"},
		{Source: in.ResolvFile, Destination: "/etc/resolv.conf"},
	}
	files = slices.DeleteFunc(files, func(f Mount) bool { return f.Source == "" || covered(f, in.Mounts) })
	binds := slices.Concat(files, in.Mounts)
	slices.SortStableFunc(binds, func(a, b Mount) int { return depth(a) - depth(b) })
	for _, m := range binds {
		list = append(list, specs.Mount{Destination: m.Destination, Type: "bind", Source: m.Source, Options: options(m)})
	}
	return list
}

func depth(m Mount) int { return strings.Count(path.Clean(m.Destination), "/") }

// covered reports whether a volume replaces one of the Pod's files. It does if it is mounted at
// the file's path. It also does if it is read-only, contains that path, and has no file there to
// mount over.
func covered(file Mount, volumes []Mount) bool {
	return slices.ContainsFunc(volumes, func(v Mount) bool {
		if v.Destination == file.Destination {
			return true
		}
		rest, inside := strings.CutPrefix(file.Destination, v.Destination+"/")
		if !inside || !v.ReadOnly {
			return false
		}
		_, err := os.Lstat(path.Join(v.Source, rest))
		return errors.Is(err, fs.ErrNotExist)
	})
}

func options(m Mount) []string {
	o := []string{"rbind", "rprivate"}
	if !m.Devices {
		o = append(o, "nosuid", "nodev")
	}
	if m.ReadOnly {
		// The mounts below become read-only too. A read-only bind mount of a tree would otherwise
		// leave the mounts inside it writable.
		return append(o, "rro")
	}
	return append(o, "rw")
}
