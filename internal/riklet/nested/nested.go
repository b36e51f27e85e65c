// Package nested runs a node inside a container of a container engine.
//
// The engine gives a container a restricted view of the machine. Its cgroups and the kernel's network
// settings are read-only. Its boot ID is that of the machine, although its processes end with the
// container. [Prepare] changes these for the node. It needs CAP_SYS_ADMIN, and no
// privileged container. [Run] is then the container's first process: it starts the riklet, starts
// it again when it ends, and collects processes that have lost their parents.
package nested

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/cgroup"
)

const (
	networkSettings = "/proc/sys/net"
	bootID          = "/proc/sys/kernel/random/boot_id"
	// leaf is the cgroup of the first process and of the riklet in a cgroup v2 hierarchy. A group
	// that has groups with controllers below it cannot have processes of its own.
	leaf = "rik-node"
)

// Prepare makes the container's cgroups and network settings writable, and gives the container a
// boot ID of its own, below dir, which must be in memory. It changes the namespaces of the calling
// thread, which must stay locked to its goroutine; the node must be started from there.
func Prepare(dir string) error {
	if err := newBootID(dir); err != nil {
		return err
	}
	if err := writableSettings(); err != nil {
		return err
	}
	return writableCgroups()
}

// newBootID hides the machine's boot ID. For the node, a start of the container is a boot, because
// no process survives the end of the container. systemd-nspawn does the same.
func newBootID(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("creating the directory of the boot ID: %w", err)
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never returns an error
	path := filepath.Join(dir, "boot-id")
	text := fmt.Sprintf("%x-%x-%x-%x-%x\n", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	if err := os.WriteFile(path, []byte(text), 0o444); err != nil {
		return fmt.Errorf("writing the boot ID: %w", err)
	}
	return mount(path, bootID, "binding the boot ID")
}

// writableSettings makes the settings of the container's own network namespace writable. The other
// settings are the machine's, and stay read-only.
func writableSettings() error {
	var now unix.Statfs_t
	if err := unix.Statfs(networkSettings, &now); err != nil {
		return fmt.Errorf("reading the state of %s: %w", networkSettings, err)
	}
	if now.Flags&unix.ST_RDONLY == 0 {
		return nil
	}
	if err := mount(networkSettings, networkSettings, "binding the network settings"); err != nil {
		return err
	}
	return writable(networkSettings)
}

// writableCgroups makes the container's groups writable, and the roots of what its processes see.
func writableCgroups() error {
	layout, err := cgroup.Detect()
	if err != nil {
		return err
	}
	for _, root := range layout.Paths("/") {
		if err := writable(root); err != nil {
			return err
		}
	}
	// An engine may show a container the paths of its groups on the machine. The paths in
	// /proc/PID/cgroup must be relative to the mounted groups.
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("creating a cgroup namespace: %w; %s", err, remedy)
	}
	if layout.Unified == "" || len(layout.V1) > 0 {
		return nil
	}
	return leave(layout.Unified)
}

// leave moves the processes of a v2 group into a group below it.
func leave(root string) error {
	dir := filepath.Join(root, leaf)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("creating the cgroup of the node: %w", err)
	}
	f, err := os.Open(filepath.Join(root, "cgroup.procs"))
	if err != nil {
		return err
	}
	defer f.Close()
	return move(f, func(pid string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pid), 0)
	})
}

// move calls to for each process in a cgroup.procs file. A process may have ended meanwhile.
func move(procs io.Reader, to func(pid string) error) error {
	lines := bufio.NewScanner(procs)
	for lines.Scan() {
		pid := strings.TrimSpace(lines.Text())
		if n, err := strconv.Atoi(pid); err != nil || n <= 0 {
			continue // 0: a process of another PID namespace
		}
		if err := to(pid); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("moving the process %s to the cgroup of the node: %w", pid, err)
		}
	}
	return lines.Err()
}

// remedy follows errors of system calls that a container may not be allowed to make.
const remedy = "the container needs the capability SYS_ADMIN and a security profile that allows mounts; deploy/compose/docker-compose.yml has all of its options"

// ErrNotAllowed means that the container lacks a capability.
var ErrNotAllowed = errors.New("the container is not allowed to mount")

func mount(source, target, what string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return mountError(what, err)
	}
	return nil
}

// writable removes the read-only flag of the mount at path, and keeps its other flags.
func writable(path string) error {
	var now unix.Statfs_t
	if err := unix.Statfs(path, &now); err != nil {
		return fmt.Errorf("reading the state of %s: %w", path, err)
	}
	if now.Flags&unix.ST_RDONLY == 0 {
		return nil
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND)
	for st, ms := range map[int64]uintptr{
		unix.ST_NOSUID: unix.MS_NOSUID, unix.ST_NODEV: unix.MS_NODEV, unix.ST_NOEXEC: unix.MS_NOEXEC,
		unix.ST_NOATIME: unix.MS_NOATIME, unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME,
	} {
		if now.Flags&st != 0 {
			flags |= ms
		}
	}
	if err := unix.Mount("", path, "", flags, ""); err != nil {
		return mountError("making "+path+" writable", err)
	}
	return nil
}

func mountError(what string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s: %w: %w; %s", what, ErrNotAllowed, err, remedy)
	}
	return fmt.Errorf("%s: %w", what, err)
}
