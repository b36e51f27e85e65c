package guestinit

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
)

// rootBuilder mounts into a root from an image that is not trusted. The kernel resolves every
// path as if the root were /. The result is used only as a descriptor.
type rootBuilder struct {
	fd int
}

// makeRoot builds a container's root in this mount namespace and moves into it.
func makeRoot(o order) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	// With its own cgroup namespace, a container sees only its own cgroup.
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("creating a cgroup namespace: %w", err)
	}
	merged := filepath.Join(o.Dir, "root")
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", o.Image, filepath.Join(o.Dir, "upper"), filepath.Join(o.Dir, "work"))
	if err := unix.Mount("overlay", merged, "overlay", unix.MS_NODEV, layers); err != nil {
		return fmt.Errorf("mounting the root file system: %w", err)
	}
	fd, err := unix.Open(merged, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := rootBuilder{fd: fd}
	if err := b.fill(o); err != nil {
		return err
	}
	if o.Process.ReadOnlyRoot {
		if err := unix.Mount("", merged, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NODEV, ""); err != nil {
			return fmt.Errorf("making the root file system read-only: %w", err)
		}
	}
	return pivot(merged)
}

func (b rootBuilder) fill(o order) error {
	for _, step := range []func() error{
		b.mountKernel,
		b.mountDevices,
		func() error { return b.mountVolumes(o.Process.Mounts, shallow) },
		func() error { return b.mountNames(filepath.Join(o.Dir, "names")) },
		func() error { return b.mountVolumes(o.Process.Mounts, deep) },
		b.hideKernel,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// pivot makes a directory the root and detaches the old root.
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("entering the root file system: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting the old root file system: %w", err)
	}
	return unix.Chdir("/")
}

// mountKernel mounts the kernel's file systems.
func (b rootBuilder) mountKernel() error {
	const readOnly = quiet | unix.MS_RDONLY
	if err := b.mountAt("/proc", "proc", "proc", quiet, ""); err != nil {
		return err
	}
	if err := b.mountAt("/sys", "sysfs", "sysfs", readOnly, ""); err != nil {
		return err
	}
	return b.mountAt("/sys/fs/cgroup", "cgroup2", "cgroup2", readOnly, "")
}

// devices are the devices of every container. Devices of the machine are not among them, and the
// container's file systems do not allow it to create any.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

var deviceLinks = map[string]string{
	"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
}

func (b rootBuilder) mountDevices() error {
	if err := b.mountAt("/dev", "tmpfs", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755,size=64k"); err != nil {
		return err
	}
	for _, device := range devices {
		source, err := unix.Open("/dev/"+device, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("finding the device %s: %w", device, err)
		}
		err = b.bind(source, "/dev/"+device, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		_ = unix.Close(source)
		if err != nil {
			return err
		}
	}
	if err := b.mountAt("/dev/pts", "devpts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"); err != nil {
		return err
	}
	if err := b.mountAt("/dev/shm", "tmpfs", "tmpfs", quiet, "mode=1777,size=64m"); err != nil {
		return err
	}
	dev, err := b.open("/dev", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dev)
	for link, target := range deviceLinks {
		if err := unix.Symlinkat(target, dev, link); err != nil {
			return fmt.Errorf("linking /dev/%s: %w", link, err)
		}
	}
	return nil
}

// mountNames mounts the hosts, hostname and resolv.conf files over those of the image, and over
// those of a volume at /etc. If a read-only volume lacks such a file, the file is not mounted.
func (b rootBuilder) mountNames(dir string) error {
	for _, file := range []string{"hosts", "hostname", "resolv.conf"} {
		source, err := unix.Open(filepath.Join(dir, file), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = b.bind(source, "/etc/"+file, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
		_ = unix.Close(source)
		if err != nil && !errors.Is(err, unix.EROFS) {
			return err
		}
	}
	return nil
}

// shallow and deep distinguish volumes mounted above the three files of mountNames from volumes
// mounted at or below them.
func shallow(target string) bool { return strings.Count(path.Clean(target), "/") < 2 }
func deep(target string) bool    { return !shallow(target) }

// mountVolumes mounts the chosen volumes in the node's order, because one may be inside another.
func (b rootBuilder) mountVolumes(mounts []guest.Mount, chosen func(target string) bool) error {
	for _, m := range mounts {
		if !chosen(m.Target) {
			continue
		}
		if err := b.mountVolume(m); err != nil {
			return fmt.Errorf("mounting the volume %q at %s: %w", m.Volume, m.Target, err)
		}
	}
	return nil
}

func (b rootBuilder) mountVolume(m guest.Mount) error {
	dir, err := volumePath(m.Volume)
	if err != nil {
		return err
	}
	if err := validTarget(m.Target); err != nil {
		return err
	}
	volume, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(volume)
	source := volume
	if m.SubPath != "" {
		// Create the missing part of a subpath as a directory, like Kubernetes does.
		v := rootBuilder{fd: volume}
		if source, err = v.openOrMakeLike(m.SubPath); err != nil {
			return fmt.Errorf("subpath %s: %w", m.SubPath, err)
		}
		defer unix.Close(source)
	}
	attributes := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if m.ReadOnly {
		attributes |= unix.MOUNT_ATTR_RDONLY
	}
	return b.bind(source, m.Target, attributes)
}

// hidden lists files that describe the machine, or give access to it, instead of the container.
// It is the usual list of container engines.
var hidden = []string{"/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/acpi", "/proc/scsi", "/sys/firmware"}

var frozen = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/asound"}

func (b rootBuilder) hideKernel() error {
	null, err := unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(null)
	for _, p := range hidden {
		if err := b.hide(p, null); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("masking %s: %w", p, err)
		}
	}
	for _, p := range frozen {
		if err := b.freeze(p); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("making %s read-only: %w", p, err)
		}
	}
	return nil
}

func (b rootBuilder) hide(p string, null int) error {
	fd, err := b.open(p, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if isDir(fd) {
		return unix.Mount("tmpfs", fdPath(fd), "tmpfs", quiet|unix.MS_RDONLY, "size=0")
	}
	return moveTree(null, fd, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOEXEC)
}

func (b rootBuilder) freeze(p string) error {
	fd, err := b.open(p, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return moveTree(fd, fd, unix.MOUNT_ATTR_RDONLY)
}

// mountAt mounts a new file system on a directory, which it creates if necessary.
func (b rootBuilder) mountAt(target, source, kind string, flags uintptr, data string) error {
	fd, err := b.openOrMake(target, false, 0o755)
	if err != nil {
		return fmt.Errorf("creating %s: %w", target, err)
	}
	defer unix.Close(fd)
	if err := unix.Mount(source, fdPath(fd), kind, flags, data); err != nil {
		return fmt.Errorf("mounting %s: %w", target, err)
	}
	return nil
}

// bind mounts a file or directory at a path in the root. It creates the mount point if
// necessary.
func (b rootBuilder) bind(source int, target string, attributes uint64) error {
	fd, err := b.openOrMake(target, !isDir(source), 0o755)
	if err != nil {
		return fmt.Errorf("creating %s: %w", target, err)
	}
	defer unix.Close(fd)
	if err := moveTree(source, fd, attributes); err != nil {
		return fmt.Errorf("mounting at %s: %w", target, err)
	}
	return nil
}

// moveTree mounts a copy of the mount tree at source over target, with these attributes.
func moveTree(source, target int, attributes uint64) error {
	tree, err := unix.OpenTree(source, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attributes}); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// open opens a path as if the root were /.
func (b rootBuilder) open(p string, flags uint64, mode uint64) (int, error) {
	how := &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Mode: mode, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(b.fd, p, how)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// openOrMake opens a path and creates what is missing: directories with the mode, and at the end
// a file if file is set. It replaces a dangling link.
func (b rootBuilder) openOrMake(p string, file bool, mode uint32) (int, error) {
	if fd, err := b.open(p, unix.O_PATH, 0); err == nil || !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	clean := path.Clean("/" + p)
	dir, base := path.Split(clean)
	if base == "" {
		return -1, unix.ENOENT
	}
	parent, err := b.openOrMake(dir, false, mode)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if err := makeEntry(parent, base, file, mode); err != nil {
		return -1, err
	}
	return b.open(clean, unix.O_PATH, 0)
}

// openOrMakeLike is openOrMake for a directory. New directories get the mode of the volume's
// root, like in the kubelet, so that users who can write to the volume can write there too.
func (b rootBuilder) openOrMakeLike(p string) (int, error) {
	var volume unix.Stat_t
	if err := unix.Fstat(b.fd, &volume); err != nil {
		return -1, err
	}
	return b.openOrMake(p, false, volume.Mode&0o7777)
}

func makeEntry(parent int, base string, file bool, mode uint32) error {
	var link unix.Stat_t
	if err := unix.Fstatat(parent, base, &link, unix.AT_SYMLINK_NOFOLLOW); err == nil && link.Mode&unix.S_IFMT == unix.S_IFLNK {
		if err := unix.Unlinkat(parent, base, 0); err != nil {
			return err
		}
	}
	// An O_PATH descriptor cannot be written through, but it can be the directory of a call.
	if !file {
		if err := unix.Mkdirat(parent, base, mode); err != nil {
			return ignoreExists(err)
		}
		// The umask has removed permissions, so set the mode again. A link that a container puts
		// there is not followed.
		made, err := unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return errors.Join(unix.Fchmod(made, mode), unix.Close(made))
	}
	fd, err := unix.Openat(parent, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return ignoreExists(err)
	}
	return unix.Close(fd)
}

func ignoreExists(err error) error {
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

func isDir(fd int) bool {
	var s unix.Stat_t
	return unix.Fstat(fd, &s) == nil && s.Mode&unix.S_IFMT == unix.S_IFDIR
}

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// validTarget checks that a path may be a mount point. It must not be the root itself.
func validTarget(target string) error {
	if !strings.HasPrefix(target, "/") || path.Clean(target) == "/" {
		return fmt.Errorf("a volume cannot be mounted at %q", target)
	}
	return nil
}
