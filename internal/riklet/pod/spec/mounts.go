package spec

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// mounts lists the kernel's file systems, the Pod's files and the volumes. The
// volumes come last and parents before children, so that one may lie in another.
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
	volumes := slices.Clone(in.Mounts)
	slices.SortStableFunc(volumes, func(a, b Mount) int { return len(a.Destination) - len(b.Destination) })
	for _, m := range slices.Concat(files, volumes) {
		if m.Source == "" || slices.ContainsFunc(volumes, func(v Mount) bool { return v.Destination == m.Destination && v != m }) {
			continue // a volume at the place of one of the Pod's files replaces it
		}
		list = append(list, specs.Mount{Destination: m.Destination, Type: "bind", Source: m.Source, Options: options(m)})
	}
	return list
}

func options(m Mount) []string {
	o := []string{"rbind", "rprivate"}
	if !m.Devices {
		o = append(o, "nosuid", "nodev")
	}
	if m.ReadOnly {
		// Everything below too: a bind over a tree would otherwise leave the
		// mounts inside it writable.
		return append(o, "rro")
	}
	return append(o, "rw")
}
