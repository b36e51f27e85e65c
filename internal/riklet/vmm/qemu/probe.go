package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/internal/qmp"
)

const (
	// kvmTimeout is much longer than a guest needs under KVM, where it boots in half a second.
	// tcgTimeout allows for software emulation on a busy machine.
	kvmTimeout = 10 * time.Second
	tcgTimeout = 60 * time.Second
	// refusal is the time after a failed boot before the next attempt.
	refusal = time.Minute
	// probeMemory is enough to boot any kernel of a machine.
	probeMemory = 192 << 20
	// tail is the length of console output in an error.
	tail      = 600
	probeFile = "qemu-probe.json"
	// tcgTries is the number of boots in software emulation before the probe fails. On a busy
	// machine the kernel may measure its timer wrongly, and the init then powers the guest off.
	tcgTries  = 4
	kvmDevice = "/dev/kvm"
	// probeUID is the user of a probe's QEMU if the agent is root.
	probeUID = 65534
)

// errEnded means that the guest ended before its init opened the channel.
var errEnded = errors.New("QEMU ended")

// found is the result of a probe, and the key for which it is valid.
type found struct {
	Key          string           `json:"key"`
	Binary       string           `json:"binary"`
	Architecture string           `json:"architecture"`
	Capabilities vmm.Capabilities `json:"capabilities"`
	// TSCKilohertz is the frequency of the time-stamp counter; 0 means unknown.
	TSCKilohertz int64 `json:"tscKilohertz"`
}

// Probe boots a guest: under KVM, and if that does not work, in software emulation. The guest
// has booted when its init opens the channel. The result is valid until the machine restarts or
// QEMU or the kernel changes.
func (d *Driver) Probe(ctx context.Context) (vmm.Capabilities, error) {
	f, err := d.probe(ctx)
	if err != nil {
		return vmm.Capabilities{}, err
	}
	return f.Capabilities, nil
}

func (d *Driver) probe(ctx context.Context) (*found, error) {
	binary, key, err := d.key()
	if err != nil {
		return nil, err
	}
	// Hold the lock during the boot, because other callers need the same result.
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.found != nil && d.found.Key == key {
		return d.found, nil
	}
	if d.refused != nil && time.Now().Before(d.refusedUntil) {
		return nil, d.refused
	}
	if f := d.cachedProbe(key); f != nil {
		d.found = f
		return f, nil
	}
	f, err := d.discover(ctx, binary)
	if err != nil {
		if ctx.Err() == nil {
			d.refused, d.refusedUntil = err, time.Now().Add(refusal)
		}
		return nil, err
	}
	f.Key = key
	d.found = f
	d.cacheProbe(f)
	d.config.Logger.Info("probed how this machine runs microVMs", "vmm", "qemu", "version", f.Capabilities.Version, "accelerator", f.Capabilities.Accelerator)
	return f, nil
}

// key finds the program and returns a key of everything that the result of a probe depends on.
func (d *Driver) key() (binary, key string, err error) {
	binary, err = exec.LookPath(d.config.Binary)
	if err == nil {
		binary, err = filepath.Abs(binary)
	}
	if err != nil {
		return "", "", fmt.Errorf("%w: %s not found: apt-get install %s", vmm.ErrUnavailable, d.config.Binary, platforms[known(d.config.Architecture)].debian)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", "", err
	}
	parts := []string{strings.TrimSpace(string(boot)), d.config.Architecture, d.config.Accelerator}
	for what, path := range map[string]string{"kernel": d.config.Kernel, "initramfs": d.config.Initramfs} {
		if path == "" {
			return "", "", fmt.Errorf("%w: no %s for guests is configured: hack/guest.sh builds one", vmm.ErrUnavailable, what)
		}
	}
	for _, path := range []string{binary, d.config.Kernel, d.config.Initramfs} {
		info, err := os.Stat(path)
		if err != nil {
			return "", "", fmt.Errorf("%w: %w", vmm.ErrUnavailable, err)
		}
		parts = append(parts, fmt.Sprintf("%s %d %d", path, info.Size(), info.ModTime().UnixNano()))
	}
	return binary, strings.Join(parts, "|"), nil
}

func (d *Driver) cachedProbe(key string) *found {
	if d.config.StateDir == "" {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(d.config.StateDir, probeFile))
	if err != nil {
		return nil
	}
	var f found
	if json.Unmarshal(b, &f) != nil || f.Key != key {
		return nil
	}
	return &f
}

// cacheProbe saves the result, so that the next agent need not probe. An error only means another
// probe.
func (d *Driver) cacheProbe(f *found) {
	if d.config.StateDir == "" {
		return
	}
	b, err := json.Marshal(f)
	if err == nil {
		err = atomicfile.Write(filepath.Join(d.config.StateDir, probeFile), b)
	}
	if err != nil {
		d.config.Logger.Warn("saving the result of a probe failed: the next riklet probes again", "err", err)
	}
}

// discover tries one accelerator after the other.
func (d *Driver) discover(ctx context.Context, binary string) (*found, error) {
	version, err := binaryVersion(ctx, binary)
	if err != nil {
		return nil, err
	}
	var failures []error
	for _, a := range d.config.accelerators() {
		f := d.config.newFound(binary, version, a)
		err := d.boot(ctx, f)
		for tries := 1; errors.Is(err, errEnded) && a == TCG && tries < tcgTries && ctx.Err() == nil; tries++ {
			err = d.boot(ctx, f)
		}
		if err == nil {
			return f, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		d.config.Logger.Info("no guest boots in this way", "vmm", "qemu", "accelerator", a, "err", err)
		failures = append(failures, fmt.Errorf("under %s: %w", a, err))
	}
	return nil, fmt.Errorf("%w: QEMU %s boots no guest: %w", vmm.ErrUnavailable, version, errors.Join(failures...))
}

var versionPattern = regexp.MustCompile(`version (\d+\.\d+\.\d+)`)

func binaryVersion(ctx context.Context, binary string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, kvmTimeout)
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

// groups returns the groups that the VMM needs: the one that may open /dev/kvm.
func (f *found) groups(m vmm.Machine) []uint32 {
	if f.Capabilities.Accelerator != KVM {
		return nil
	}
	var s unix.Stat_t
	if unix.Stat(kvmDevice, &s) != nil || s.Mode&0o006 == 0o006 || s.Uid == m.UID || s.Mode&0o060 != 0o060 {
		return nil
	}
	return []uint32{s.Gid}
}

// probeDir is the prefix of the name of a probe's directory. It is not a valid name of an
// instance.
const probeDir = ".probe-"

// boot starts a guest like any other and waits until its init opens the channel.
func (d *Driver) boot(ctx context.Context, f *found) error {
	timeout := tcgTimeout
	if f.Capabilities.Accelerator == KVM {
		timeout = kvmTimeout
		if err := usable(kvmDevice); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no guest init answered within %v", timeout))
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
	m := d.probeMachine(dir)
	process, err := d.prepare(m, f)
	if err != nil {
		return err
	}
	defer func() { _ = d.Cleanup(context.WithoutCancel(ctx), m) }()
	return d.observe(ctx, m, process)
}

func usable(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func (d *Driver) probeMachine(dir string) vmm.Machine {
	m := vmm.Machine{
		ID: "probe", Dir: dir, Kernel: d.config.Kernel, Initramfs: d.config.Initramfs,
		VCPUs: 1, MemoryBytes: probeMemory, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	}
	if m.UID == 0 {
		m.UID, m.GID = probeUID, probeUID
	}
	return m
}

// observe runs QEMU until the guest's init opens its port.
func (d *Driver) observe(ctx context.Context, m vmm.Machine, p launch.Process) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Only root may be able to enter the temporary directory, as with pam_tmpdir(8). The VMM's
	// user enters its directory through an open descriptor, and does not pass through the ones
	// above.
	place, err := os.OpenFile(p.Dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = place.Close() }()
	p.Dir = fmt.Sprintf("/proc/self/fd/%d", place.Fd())
	console := excerpt.NewTail(tail)
	cmd := command(ctx, p, console)
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		err := cmd.Wait()
		cancel(fmt.Errorf("%w (%v): %q", errEnded, err, console)) //nolint:errorlint // may be nil
		close(ended)
	}()
	err = d.awaitInit(ctx, m)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	cancel(nil)
	<-ended
	if err != nil && !strings.Contains(err.Error(), strconv.Quote(console.String())) {
		err = fmt.Errorf("%w; its console: %q", err, console)
	}
	return err
}

// command returns a command that runs a process as the supervisor would, except for the cgroups.
func command(ctx context.Context, p launch.Process, output io.Writer) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.Argv[0], p.Argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = p.Env, p.Dir, output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: p.UID, Gid: p.GID, Groups: p.Groups}
	}
	cmd.WaitDelay = time.Second
	return cmd
}

func (d *Driver) awaitInit(ctx context.Context, m vmm.Machine) error {
	if _, err := d.Connect(ctx, m); err != nil {
		return err
	}
	c, err := qmp.Dial(ctx, filepath.Join(directory(m), qmpSocket), m.UID)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.Execute(ctx, "cont", nil, nil); err != nil {
		return err
	}
	for {
		event, err := c.Event(ctx)
		if err != nil {
			return err
		}
		if event.Name == "VSERPORT_CHANGE" && opened(event) {
			return nil
		}
	}
}

func opened(e qmp.Event) bool {
	var port struct {
		ID   string `json:"id"`
		Open bool   `json:"open"`
	}
	return json.Unmarshal(e.Data, &port) == nil && port.ID == portID && port.Open
}
