package firecracker

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/firecracker/apitest"
	"rik.dev/rik/internal/riklet/vmm/vmmtest"
	"rik.dev/rik/internal/testkit/privileged"
)

// TestPrivilegedFirecracker runs the conformance suite against the fake, which checks every
// request against the published API and boots no guest.
func TestPrivilegedFirecracker(t *testing.T) {
	privileged.Require(t)
	kernel, initramfs := files(t)
	vmmtest.Run(t, vmmtest.Config{
		Driver: fakeDriver(t), Kernel: kernel, Initramfs: initramfs,
		ControlSocket: func(m vmm.Machine) string { return filepath.Join(m.Dir, linkFile, apiSocket) },
	})
}

// files creates a kernel and an initramfs that are not executable.
func files(t *testing.T) (kernel, initramfs string) {
	t.Helper()
	dir := t.TempDir()
	kernel, initramfs = filepath.Join(dir, "vmlinux"), filepath.Join(dir, "initramfs")
	for path, content := range map[string]string{kernel: "\x7fELF of no kernel", initramfs: "of no guest"} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return kernel, initramfs
}

func fakeDriver(t *testing.T) *Driver {
	t.Helper()
	d, err := New(Config{Location: apitest.Programs(t), NoGuest: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPrivilegedInterfaces configures a machine with every kind of device and limit, and
// restores it with other TAPs. The suite's machines do not have these.
func TestPrivilegedInterfaces(t *testing.T) {
	privileged.Require(t)
	d, m := fakeDriver(t), machine(t)
	m.NICs = []vmm.NIC{{TAP: "tap0", MAC: "02:00:00:00:00:01", ReceiveBytesPerSecond: 1 << 20, TransmitBytesPerSecond: 1 << 19}}
	m.Disks[0].BytesPerSecond = 1 << 20
	v := vmmtest.Start(t, d, m)
	if err := v.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, err := v.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second, err := v.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The fake adds the same values with every line, so the sums double.
	if first.DiskReadBytes == 0 || second.DiskReadBytes != 2*first.DiskReadBytes || second.NetworkReceived != 20 || second.Exits != 20 {
		t.Errorf("Metrics() went from %+v to %+v, want sums of what each line adds", first, second)
	}
	dir := t.TempDir()
	if err := errors.Join(v.Pause(t.Context()), v.Snapshot(t.Context(), dir)); err != nil {
		t.Fatal(err)
	}
	other := machine(t)
	other.NICs, other.Disks, other.Restore = m.NICs, m.Disks, dir
	other.NICs[0].TAP = "tap1"
	w := vmmtest.Start(t, d, other)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, err := w.State(t.Context()); err != nil || s != vmm.StateRunning {
		t.Errorf("State() of the restored = %q, %v, want Running", s, err)
	}
}

// TestPrivilegedConfigureAgain simulates an agent that dies between the configuration and the
// start.
func TestPrivilegedConfigureAgain(t *testing.T) {
	privileged.Require(t)
	d, m := fakeDriver(t), machine(t)
	v := vmmtest.Start(t, d, m).(*VM)
	if err := v.count(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range configuration(m)[:3] {
		if err := v.api.put(t.Context(), r.path, r.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Start(t.Context()); err != nil {
		t.Errorf("Start() after half a configuration = %v, want nil", err)
	}
}

// fakeDriverOf returns a driver with the fake of another version and a new directory of jails.
func fakeDriverOf(t *testing.T, version string) *Driver {
	t.Helper()
	d, err := New(Config{Location: apitest.ProgramsOf(t, version), JailDir: t.TempDir(), NoGuest: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Since 1.14 Firecracker refuses a metrics pipe without a reader.
func TestPrivilegedMetricsNeedAReader(t *testing.T) {
	privileged.Require(t)
	v := vmmtest.Start(t, fakeDriverOf(t, "1.14.0"), machine(t))
	if err := v.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m, err := v.Metrics(t.Context()); err != nil || m.DiskReadBytes == 0 {
		t.Errorf("Metrics() = %+v, %v, want the counted values", m, err)
	}
}

// A version that cannot restore a machine refuses its snapshot before anything is written. An
// older version is not used at all.
func TestPrivilegedOldVersions(t *testing.T) {
	privileged.Require(t)
	d := fakeDriverOf(t, "1.11.9")
	if c, err := d.Probe(t.Context()); err != nil || c.Snapshot {
		t.Errorf("Probe() = %+v, %v, want no snapshots", c, err)
	}
	m := machine(t)
	m.NICs = []vmm.NIC{{TAP: "tap0", MAC: "02:00:00:00:00:01"}}
	v := vmmtest.Start(t, d, m)
	dir := t.TempDir()
	if err := errors.Join(v.Start(t.Context()), v.Pause(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := v.Snapshot(t.Context(), dir); !errors.Is(err, vmm.ErrUnsupported) || !strings.Contains(err.Error(), "1.12.0") {
		t.Errorf("Snapshot() = %v, want that 1.12.0 is needed", err)
	}
	if entries, err := os.ReadDir(dir); len(entries) > 0 || err != nil {
		t.Errorf("written: %v, %v", entries, err)
	}
	_, err := fakeDriverOf(t, "1.7.0").Probe(t.Context())
	if !errors.Is(err, vmm.ErrUnavailable) || !strings.Contains(err.Error(), "1.8.0") {
		t.Errorf("Probe() of an old version = %v, want that 1.8.0 is needed", err)
	}
}

// The probe and all machines use the directory of jails. Both refuse one in which a jail does
// not work.
func TestPrivilegedJailsNeedDevicesAndPrograms(t *testing.T) {
	privileged.Require(t)
	for _, option := range []uintptr{unix.MS_NODEV, unix.MS_NOEXEC} {
		d := fakeDriverOf(t, apitest.Version)
		if err := unix.Mount("tmpfs", d.config.JailDir, "tmpfs", option, "size=1m"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(d.config.JailDir, 0); err != nil {
				t.Error(err)
			}
		})
		m := machine(t)
		_, err := d.Prepare(t.Context(), m)
		if !errors.Is(err, vmm.ErrUnavailable) || !strings.Contains(err.Error(), "--jail-dir") {
			t.Errorf("Prepare() = %v, want ErrUnavailable that names --jail-dir", err)
		}
		d.config.Kernel, d.config.Initramfs, d.config.ProbeDir = m.Kernel, m.Initramfs, t.TempDir()
		f, err := d.probe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if kvm, err := os.OpenFile(kvmDevice, os.O_RDWR, 0); err != nil {
			t.Logf("the probe is not tried: %v", err)
		} else if err := errors.Join(kvm.Close(), d.boot(t.Context(), f)); !errors.Is(err, vmm.ErrUnavailable) || !strings.Contains(err.Error(), d.config.JailDir) {
			t.Errorf("boot() of the probe = %v, want that %s is refused", err, d.config.JailDir)
		}
		if err := d.Cleanup(t.Context(), m); err != nil {
			t.Error(err)
		}
	}
}

// A machine whose jail is in an earlier directory of jails continues, and is removed at the end.
func TestPrivilegedJailsOfAnEarlierRun(t *testing.T) {
	privileged.Require(t)
	d, m := fakeDriverOf(t, apitest.Version), machine(t)
	before := d.config.JailDir
	t.Cleanup(func() { // runs after the cleanup of the machine
		if entries, err := os.ReadDir(filepath.Join(before, execName)); len(entries) > 0 {
			t.Errorf("left: %v, %v", entries, err)
		}
	})
	if err := vmmtest.Start(t, d, m).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.config.JailDir = t.TempDir()
	v, err := d.Connect(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Metrics(t.Context()); err != nil {
		t.Error(err)
	}
}

// With cgroups of version 2 the jailer moves itself into its parent group, if that exists.
func TestJailerStaysInTheMachinesCgroup(t *testing.T) {
	t.Parallel()
	in := vmm.Machine{Cgroups: []string{"/sys/fs/cgroup/rik/u1/_vmm/cgroup.procs"}}
	for _, tc := range []struct {
		version string
		machine vmm.Machine
		want    string
	}{{"2", in, "rik/u1/_vmm"}, {"2", vmm.Machine{}, noCgroup}, {"1", in, noCgroup}} {
		if got := parentCgroup(tc.version, tc.machine); got != tc.want {
			t.Errorf("parentCgroup(%s) = %q, want %q", tc.version, got, tc.want)
		}
	}
}

// The guest's console must have only the guest's output. Firecracker's own log at its default
// level would fill it.
func TestPrivilegedTheConsoleIsTheGuests(t *testing.T) {
	privileged.Require(t)
	p, err := fakeDriver(t).Prepare(t.Context(), machine(t))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.Argv[len(p.Argv)-2:], []string{"--level", "Warning"}) {
		t.Errorf("the VMM is started by %q, want it to log warnings only", p.Argv)
	}
}

func TestOlder(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"1.7.9": true, "1.8.0": false, "1.8.1": false, "1.12.0": false, "2.0.0": false, "0.25.2": true, "1.8.0-dev": false, "x": true} {
		if got := older(version, oldestVersion); got != want {
			t.Errorf("older(%s) = %t, want %t", version, got, want)
		}
	}
}

func machine(t *testing.T) vmm.Machine {
	t.Helper()
	kernel, initramfs := files(t)
	m := vmmtest.Machine(t)
	m.Kernel, m.Initramfs = kernel, initramfs
	return m
}

func TestProbeNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	alone := t.TempDir()
	if err := os.WriteFile(filepath.Join(alone, "firecracker"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ location, want string }{
		"nothing there": {empty, EnvLocation},
		"no jailer":     {alone, "jailer"},
		"no program":    {filepath.Join(empty, "firecracker"), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := New(Config{Location: tc.location, NoGuest: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.Probe(context.Background()); !errors.Is(err, vmm.ErrUnavailable) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Probe() = %v, want ErrUnavailable that names %q", err, tc.want)
			}
		})
	}
}

func TestFindOrder(t *testing.T) {
	dirs := map[string]string{}
	for _, name := range []string{"env", "path", "here"} {
		dirs[name] = apitest.Programs(t)
	}
	t.Setenv("PATH", dirs["path"])
	t.Setenv(EnvLocation, dirs["env"])
	t.Chdir(dirs["here"])
	for _, want := range []string{"env", "path", "here"} {
		binary, jailer, err := Config{}.find()
		if err != nil || filepath.Dir(binary) != dirs[want] || filepath.Dir(jailer) != dirs[want] {
			t.Errorf("find() = %s, %s, %v, want those in the directory of %s, %s", binary, jailer, err, want, dirs[want])
		}
		switch want {
		case "env":
			t.Setenv(EnvLocation, "")
		case "path":
			t.Setenv("PATH", t.TempDir())
		}
	}
}
