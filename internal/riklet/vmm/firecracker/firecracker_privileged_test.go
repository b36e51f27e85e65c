package firecracker

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/firecracker/apitest"
	"rik.dev/rik/internal/riklet/vmm/vmmtest"
	"rik.dev/rik/internal/testkit/privileged"
)

// TestPrivilegedFirecracker runs the conformance suite against the stand-in, which holds
// every request against the published API and boots no guest.
func TestPrivilegedFirecracker(t *testing.T) {
	privileged.Require(t)
	kernel, initramfs := files(t)
	vmmtest.Run(t, vmmtest.Config{
		Driver: standIn(t), Kernel: kernel, Initramfs: initramfs,
		ControlSocket: func(m vmm.Machine) string { return filepath.Join(m.Dir, linkFile, apiSocket) },
	})
}

// files are a kernel and an initramfs of which nothing is executed.
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

func standIn(t *testing.T) *Driver {
	t.Helper()
	d, err := New(Config{Location: apitest.Programs(t), NoGuest: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPrivilegedInterfaces has a machine with every kind of device and limit configured
// and restored under other TAPs, which the suite's machines do not have.
func TestPrivilegedInterfaces(t *testing.T) {
	privileged.Require(t)
	d, m := standIn(t), machine(t)
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
	// The stand-in adds the same with every line: sums double.
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

// TestPrivilegedConfigureAgain has an agent die between the configuration and the start.
func TestPrivilegedConfigureAgain(t *testing.T) {
	privileged.Require(t)
	d, m := standIn(t), machine(t)
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
