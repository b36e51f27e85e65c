package firecracker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/internal/socket"
)

const (
	kvmDevice = "/dev/kvm"
	// timeout is much longer than a guest needs to boot under KVM.
	timeout     = 15 * time.Second
	refusal     = time.Minute
	probeMemory = 192 << 20
	probeUID    = 65534
	// probeDir is not a valid name of an instance.
	probeDir = ".probe-"
	// handshake limits the line that the vsock device answers.
	handshake = 64
)

// found is the result of a probe.
type found struct {
	Binary, Jailer string
	Capabilities   vmm.Capabilities
}

// Probe checks for the programs and for KVM, and boots a guest. The guest has booted when its
// init accepts a connection of the channel.
func (d *Driver) Probe(ctx context.Context) (vmm.Capabilities, error) {
	f, err := d.probe(ctx)
	if err != nil {
		return vmm.Capabilities{}, err
	}
	return f.Capabilities, nil
}

func (d *Driver) probe(ctx context.Context) (*found, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.found != nil {
		return d.found, nil
	}
	if d.refused != nil && time.Now().Before(d.refusedUntil) {
		return nil, d.refused
	}
	f, err := d.discover(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.refused, d.refusedUntil = err, time.Now().Add(refusal)
		}
		return nil, err
	}
	d.found = f
	d.config.Logger.Info("probed how this machine runs microVMs", "vmm", d.Name(), "version", f.Capabilities.Version, "guest", f.Capabilities.Guest)
	return f, nil
}

func (d *Driver) discover(ctx context.Context) (*found, error) {
	binary, jailer, err := d.config.find()
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: Firecracker's jailer needs root", vmm.ErrUnavailable)
	}
	version, err := binaryVersion(ctx, binary)
	if err != nil {
		return nil, err
	}
	if older(version, oldestVersion) {
		return nil, fmt.Errorf("%w: %s is Firecracker %s, and %s or later is needed: install it with its jailer from Firecracker's releases", vmm.ErrUnavailable, binary, version, oldestVersion)
	}
	f := &found{Binary: binary, Jailer: jailer, Capabilities: vmm.Capabilities{
		Version: version, Accelerator: "kvm", Snapshot: !older(version, restoresNetworks), DiskLimits: true, NetworkLimits: true,
	}}
	if d.config.NoGuest {
		return f, nil
	}
	if err := d.boot(ctx, f); err != nil {
		return nil, fmt.Errorf("%w: Firecracker %s boots no guest: %w", vmm.ErrUnavailable, version, err)
	}
	f.Capabilities.Guest = true
	return f, nil
}

// The requirements on Firecracker's version.
const (
	// oldestVersion is the first version with all of the API that creating a machine uses.
	oldestVersion = "1.8.0"
	// restoresNetworks is the first version that can restore a machine with other TAPs
	// (network_overrides).
	restoresNetworks = "1.12.0"
)

// older compares versions such as 1.12.0. A text that is not a version is older than any.
func older(version, than string) bool {
	numbers := func(text string) (list [3]int) {
		for i, part := range strings.SplitN(text, ".", len(list)) {
			list[i], _ = strconv.Atoi(part)
		}
		return list
	}
	a, b := numbers(version), numbers(than)
	return slices.Compare(a[:], b[:]) < 0
}

var versionPattern = regexp.MustCompile(`Firecracker v?(\d+\.\d+\.\d+)`)

func binaryVersion(ctx context.Context, binary string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s --version: %w", vmm.ErrUnavailable, binary, err)
	}
	match := versionPattern.FindSubmatch(out)
	if match == nil {
		return "", fmt.Errorf("%w: %s printed %.80q instead of its version", vmm.ErrUnavailable, binary, out)
	}
	return string(match[1]), nil
}

// boot starts a guest like any other and waits until its init listens.
func (d *Driver) boot(ctx context.Context, f *found) error {
	kvm, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: load the kernel module kvm_intel or kvm_amd, or enable virtualization in the firmware", err)
	}
	_ = kvm.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no guest init answered within %v: KVM does not run guests here, as under some hypervisors", timeout))
	defer cancel()
	if d.config.ProbeDir != "" {
		if err := os.MkdirAll(d.config.ProbeDir, 0o700); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp(d.config.ProbeDir, probeDir)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	m := vmm.Machine{
		ID: "probe-" + strconv.Itoa(os.Getpid()), Dir: dir, Kernel: d.config.Kernel, Initramfs: d.config.Initramfs,
		VCPUs: 1, MemoryBytes: probeMemory, UID: probeUID, GID: probeUID,
	}
	if err := d.Validate(m); err != nil {
		return err
	}
	process, err := d.prepare(m, f)
	if err != nil {
		return err
	}
	defer func() { _ = d.Cleanup(context.WithoutCancel(ctx), m) }()
	return d.observe(ctx, m, process)
}

// observe runs the VMM until the guest's init accepts a connection.
func (d *Driver) observe(ctx context.Context, m vmm.Machine, p launch.Process) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, p.Argv[0], p.Argv[1:]...)
	cmd.Env, cmd.Dir = p.Env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		cancel(fmt.Errorf("the VMM ended: %v", cmd.Wait())) //nolint:errorlint // may be nil
		close(ended)
	}()
	err := d.awaitInit(ctx, m)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	cancel(nil)
	<-ended
	return err
}

func (d *Driver) awaitInit(ctx context.Context, m vmm.Machine) error {
	v, err := d.Connect(ctx, m)
	if err != nil {
		return err
	}
	if err := v.Start(ctx); err != nil {
		return err
	}
	for {
		err := d.probeVsock(ctx, m)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if !pause.For(ctx, poll) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// probeVsock requests a connection to the guest's port:
// https://github.com/firecracker-microvm/firecracker/blob/main/docs/vsock.md
func (d *Driver) probeVsock(ctx context.Context, m vmm.Machine) error {
	c := d.Channel(m)
	conn, err := socket.Connect(ctx, c.Socket, m.UID)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %d\n", c.VsockPort); err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(conn, handshake).ReadSlice('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(line), "OK ") {
		return fmt.Errorf("the VMM answered %.20q", line)
	}
	return nil
}
