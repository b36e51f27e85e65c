// Package firecracker runs microVMs with Firecracker, always with its jailer. Each machine has
// its own root directory, mount namespace and user, and devices that the jailer creates in the
// root.
//
// The package has a small client for the API. The SDK for Go (1.0.0, of 2022, the newest) starts
// the processes itself, which is the supervisor's task here. It lacks the entropy device and the
// overrides of a restore, and adds a generated client with some twenty modules to the agent.
// apitest checks the client's requests against the API.
package firecracker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/internal/stage"
)

// EnvLocation is the environment variable for Firecracker's program or its directory. The jailer
// must be in the same directory.
const EnvLocation = "FIRECRACKER_LOCATION"

// Config configures the driver.
type Config struct {
	// Location is a file or a directory. If empty, EnvLocation, the PATH and the working
	// directory are searched in this order.
	Location string
	// Kernel and Initramfs are the files that Probe boots.
	Kernel, Initramfs string
	// JailDir is the directory of the jails. Its file system must allow devices and programs. It
	// should be the file system of the disks, because disks are then linked into the jails.
	// Firecracker also writes the memory of a snapshot there. If empty, the jails are in each
	// machine's directory.
	JailDir string
	// ProbeDir is where Probe creates its machine's directory: next to those of other machines.
	// If empty, it is the system's directory for temporary files.
	ProbeDir string
	// NoGuest makes Probe check only for the programs: Capabilities.Guest stays false.
	NoGuest bool
	Logger  *slog.Logger
}

// Driver is the vmm.Driver for Firecracker.
type Driver struct {
	config Config

	mu    sync.Mutex // held while probing
	found *found
	// refused is the error of the last probe. It is returned until refusedUntil.
	refused      error
	refusedUntil time.Time
}

var _ vmm.Driver = (*Driver)(nil)

// New returns a driver. It does not search or run any program yet.
func New(c Config) (*Driver, error) {
	if c.JailDir != "" && !filepath.IsAbs(c.JailDir) {
		return nil, fmt.Errorf("the directory of jails, %q, is not an absolute path", c.JailDir)
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Driver{config: c}, nil
}

// Name returns "firecracker".
func (d *Driver) Name() string { return "firecracker" }

// Names in a jail, and in a machine's directory.
const (
	apiSocket   = "api"
	guestSocket = "guest"
	kernelFile  = "kernel"
	initrdFile  = "initramfs"
	metricsFile = "metrics"
	memoryFile  = "memory"
	stateFile   = "state"
	outDir      = "snapshot-out"
	inDir       = "snapshot-in"

	// linkFile is a link to the jail, because the jail's own path is too long for a socket.
	linkFile    = "vmm"
	jailsDir    = "jails"
	startedFile = "vmm-started"
	countsFile  = "vmm-counts"
)

// jails returns the directory in which the jailer creates the jails of this machine and others.
func (d *Driver) jails(m vmm.Machine) string {
	if d.config.JailDir != "" {
		return d.config.JailDir
	}
	return filepath.Join(m.Dir, jailsDir)
}

// execName is the jailer's name for the directory of all jails, after the program.
const execName = "firecracker"

func (d *Driver) cell(m vmm.Machine) string { return filepath.Join(d.jails(m), execName, m.ID) }

// newRoot returns the root of a new jail. root returns the root of the machine's present jail,
// which may be in an earlier directory of jails.
func (d *Driver) newRoot(m vmm.Machine) string { return filepath.Join(d.cell(m), "root") }

func (d *Driver) root(m vmm.Machine) string {
	root, err := os.Readlink(filepath.Join(m.Dir, linkFile))
	if err == nil && strings.HasSuffix(root, filepath.Join(string(filepath.Separator), execName, m.ID, "root")) {
		return root
	}
	return d.newRoot(m)
}

func (d *Driver) api(m vmm.Machine) api {
	return api{path: filepath.Join(m.Dir, linkFile, apiSocket), uid: m.UID}
}

// Channel returns the vsock device's socket.
func (d *Driver) Channel(m vmm.Machine) guest.Channel {
	return guest.Channel{Socket: filepath.Join(m.Dir, linkFile, guestSocket), VsockPort: guest.VsockPort}
}

// Validate reports every problem of a machine.
func (d *Driver) Validate(m vmm.Machine) error {
	errs := []error{m.Validate()}
	if errs[0] == nil {
		errs = append(errs, elf(m.Kernel))
		if m.Restore != "" {
			errs = append(errs, validateSnapshot(m))
		}
	}
	return errors.Join(errs...)
}

// elf refuses a compressed kernel, because on x86 Firecracker boots only uncompressed ones.
func elf(kernel string) error {
	if runtime.GOARCH != "amd64" {
		return nil
	}
	f, err := os.Open(kernel)
	if err != nil {
		return fmt.Errorf("%w: the kernel: %w", vmm.ErrInvalid, err)
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 4)
	if _, err := io.ReadFull(f, head); err != nil || !bytes.Equal(head, []byte("\x7fELF")) {
		return fmt.Errorf("%w: the kernel %s is not an ELF file: Firecracker boots an uncompressed kernel (vmlinux), which the kernel's scripts/extract-vmlinux extracts from a vmlinuz", vmm.ErrInvalid, kernel)
	}
	return nil
}

// Prepare creates the jail and returns the process of the jailer. The jailer runs as root, and
// changes to the machine's user when the jail is ready.
func (d *Driver) Prepare(ctx context.Context, m vmm.Machine) (launch.Process, error) {
	if err := d.Validate(m); err != nil {
		return launch.Process{}, err
	}
	f, err := d.probe(ctx)
	if err != nil {
		return launch.Process{}, err
	}
	return d.prepare(m, f)
}

func (d *Driver) prepare(m vmm.Machine, f *found) (launch.Process, error) {
	if err := d.build(m); err != nil {
		return launch.Process{}, errors.Join(err, d.remove(m))
	}
	version := cgroupVersion()
	return launch.Process{
		Argv: []string{
			f.Jailer, "--id", m.ID, "--exec-file", f.Binary,
			"--uid", strconv.FormatUint(uint64(m.UID), 10), "--gid", strconv.FormatUint(uint64(m.GID), 10),
			"--chroot-base-dir", d.jails(m), "--cgroup-version", version, "--parent-cgroup", parentCgroup(version, m),
			// Without a level, Firecracker writes everything that it does to the guest's
			// console.
			"--", "--api-sock", "/" + apiSocket, "--level", "Warning",
		},
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		// The jailer pivots the root, creates devices and changes its user.
		Root: true, KeepCapabilities: true,
		Cgroups: m.Cgroups,
	}, nil
}

const cgroupRoot = "/sys/fs/cgroup"

// cgroupVersion returns the machine's cgroup version. The jailer creates no cgroup, because the
// process is in the instance's already.
func cgroupVersion() string {
	var s unix.Statfs_t
	if unix.Statfs(cgroupRoot, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC {
		return "2"
	}
	return "1"
}

// noCgroup is the name of a cgroup that does not exist.
const noCgroup = "rik-none"

// parentCgroup returns the parent cgroup for the jailer. With version 2 and no cgroup to create,
// the jailer moves itself into the parent if that exists ("firecracker" without the option).
// Therefore it gets the cgroup that it is in, the machine's.
func parentCgroup(version string, m vmm.Machine) string {
	if version != "2" {
		return noCgroup
	}
	for _, procs := range m.Cgroups {
		if group, ok := strings.CutPrefix(filepath.Dir(procs), cgroupRoot+"/"); ok {
			return group
		}
	}
	return noCgroup
}

// build creates the jail, with links to all files of the machine.
func (d *Driver) build(m vmm.Machine) error {
	if err := d.remove(m); err != nil {
		return err
	}
	owner, root := stage.Owner{UID: m.UID, GID: m.GID}, d.newRoot(m)
	// Closed to the VMMs of other machines. The machine's own VMM never leaves root.
	if err := os.MkdirAll(d.cell(m), 0o700); err != nil {
		return err
	}
	if err := devices(d.cell(m)); err != nil {
		return err
	}
	if err := stage.Directory(root, owner); err != nil {
		return err
	}
	if err := os.Symlink(root, filepath.Join(m.Dir, linkFile)); err != nil {
		return err
	}
	if err := fill(m, root, owner); err != nil {
		return err
	}
	// Use a pipe, because a file would grow by some kilobytes a minute for as long as the VM
	// lives.
	fifo := filepath.Join(root, metricsFile)
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		return fmt.Errorf("creating a pipe for metrics: %w", err)
	}
	return os.Lchown(fifo, int(m.UID), int(m.GID))
}

func fill(m vmm.Machine, root string, owner stage.Owner) error {
	files := []struct{ what, from, to string }{{"the kernel", m.Kernel, kernelFile}, {"the initramfs", m.Initramfs, initrdFile}}
	if m.Restore != "" {
		if err := stage.Directory(filepath.Join(root, inDir), owner); err != nil {
			return err
		}
		for _, name := range []string{memoryFile, stateFile} {
			files = append(files, struct{ what, from, to string }{"the snapshot", filepath.Join(m.Restore, name), filepath.Join(inDir, name)})
		}
	}
	for _, f := range files {
		if f.from == "" {
			continue
		}
		if err := stage.ReadOnly(f.from, filepath.Join(root, f.to), owner); err != nil {
			return fmt.Errorf("%s: %w", f.what, err)
		}
	}
	for i, disk := range m.Disks {
		put := stage.Writable
		if disk.ReadOnly {
			put = stage.ReadOnly
		}
		if err := put(disk.Path, filepath.Join(root, driveID(i)), owner); err != nil {
			return fmt.Errorf("disk %q: %w", disk.ID, err)
		}
	}
	return nil
}

// driveID names a disk by its position: Firecracker accepts no hyphens, and does not pass a
// serial number to the guest.
func driveID(index int) string { return fmt.Sprintf("disk%d", index) }

// devices refuses a directory in which the jailer's devices or the program in the jail would not
// work.
func devices(dir string) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return err
	}
	for _, bad := range []struct {
		flag       int64
		name, what string
	}{
		{unix.ST_NODEV, "nodev", "its jailer creates /dev/kvm there"},
		{unix.ST_NOEXEC, "noexec", "it is run from there"},
	} {
		if s.Flags&bad.flag != 0 {
			return fmt.Errorf("%w: %s is on a file system that is mounted with %s, and Firecracker cannot work there: %s; next: set --jail-dir to a directory on another file system",
				vmm.ErrUnavailable, dir, bad.name, bad.what)
		}
	}
	return nil
}

// Cleanup removes the jail.
func (d *Driver) Cleanup(_ context.Context, m vmm.Machine) error {
	// Only these two fields are checked, because only they become part of paths.
	if !filepath.IsAbs(m.Dir) || filepath.Base(m.ID) != m.ID || m.ID == "." || m.ID == ".." {
		return fmt.Errorf("%w: the directory %q or the ID %q is not valid", vmm.ErrInvalid, m.Dir, m.ID)
	}
	return d.remove(m)
}

func (d *Driver) remove(m vmm.Machine) error {
	errs := []error{stage.Remove(filepath.Dir(d.root(m))), stage.Remove(d.cell(m))}
	for _, name := range []string{linkFile, startedFile, countsFile} {
		if err := os.Remove(filepath.Join(m.Dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if d.config.JailDir == "" {
		errs = append(errs, stage.Remove(d.jails(m)))
	}
	return errors.Join(errs...)
}

// find searches for Firecracker and its jailer.
func (c Config) find() (binary, jailer string, err error) {
	location := c.Location
	if location == "" {
		location = os.Getenv(EnvLocation)
	}
	if binary, err = locate(location); err != nil {
		return "", "", err
	}
	if filepath.Base(binary) != execName {
		return "", "", fmt.Errorf("%w: %s must have the name %q, because the jailer names the jails after it", vmm.ErrUnavailable, binary, execName)
	}
	jailer = filepath.Join(filepath.Dir(binary), "jailer")
	if err := executable(jailer); err != nil {
		return "", "", fmt.Errorf("%w: Firecracker's jailer must be next to %s: %w", vmm.ErrUnavailable, binary, err)
	}
	return binary, jailer, nil
}

func locate(location string) (string, error) {
	if location != "" {
		location, err := filepath.Abs(location)
		if err != nil {
			return "", err
		}
		if info, err := os.Stat(location); err == nil && info.IsDir() {
			location = filepath.Join(location, execName)
		}
		if err := executable(location); err != nil {
			return "", fmt.Errorf("%w: %s: %w", vmm.ErrUnavailable, EnvLocation, err)
		}
		return location, nil
	}
	if path, err := exec.LookPath(execName); err == nil {
		return filepath.Abs(path)
	}
	here, err := filepath.Abs(execName)
	if err != nil {
		return "", err
	}
	if err := executable(here); err != nil {
		return "", fmt.Errorf("%w: no firecracker on the PATH or in the working directory: install it with its jailer from Firecracker's releases, or set %s", vmm.ErrUnavailable, EnvLocation)
	}
	return here, nil
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not a program", path)
	}
	return nil
}
