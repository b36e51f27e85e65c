package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/testkit/golden"
)

// TestArguments compares QEMU's command line with a golden file, one argument per line.
func TestArguments(t *testing.T) {
	t.Parallel()
	small := vmm.Machine{ID: "a", VCPUs: 1, MemoryBytes: 128 << 20}
	full := vmm.Machine{
		ID: "0b7e", Initramfs: "/x/initramfs", CommandLine: "debug", VCPUs: 4, MemoryBytes: 512<<20 + 1, Restore: "/x/snapshot",
		Disks: []vmm.Disk{
			{ID: "root", Path: "/x/root,readonly=off", ReadOnly: true},
			{ID: "scratch", Path: "/x/scratch", BytesPerSecond: 1 << 20, OperationsPerSecond: 100},
		},
		NICs: []vmm.NIC{{TAP: "tap0", MAC: "02:00:00:00:00:01", MTU: 1400}},
	}
	for name, tc := range map[string]struct {
		m vmm.Machine
		f found
	}{
		"small-kvm":       {small, found{Architecture: "amd64", Capabilities: vmm.Capabilities{Accelerator: KVM}, TSCKilohertz: 2596000}},
		"full-tcg":        {full, found{Architecture: "amd64", Capabilities: vmm.Capabilities{Accelerator: TCG}, TSCKilohertz: 2596000}},
		"small-kvm-arm64": {small, found{Architecture: "arm64", Capabilities: vmm.Capabilities{Accelerator: KVM}}},
		"full-tcg-arm64":  {full, found{Architecture: "arm64", Capabilities: vmm.Capabilities{Accelerator: TCG}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(arguments(tc.m, &tc.f), "\n") + "\n"
			golden.Compare(t, name+".args", got)
		})
	}
}

func TestProbeNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("#!/bin/sh\necho no version\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		c    Config
		want string
	}{
		"no QEMU":      {Config{Binary: "qemu-missing", Architecture: "amd64", Kernel: file, Initramfs: file}, "apt-get install qemu-system-x86"},
		"no QEMU, arm": {Config{Binary: "qemu-missing", Architecture: "arm64", Kernel: file, Initramfs: file}, "apt-get install qemu-system-arm"},
		"no kernel":    {Config{Binary: file, Initramfs: file}, "kernel"},
		"lost kernel":  {Config{Binary: file, Kernel: file + ".lost", Initramfs: file}, ".lost"},
		"another tool": {Config{Binary: file, Kernel: file, Initramfs: file}, "no version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := New(tc.c)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.Probe(t.Context()); !errors.Is(err, vmm.ErrUnavailable) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Probe() = %v, want ErrUnavailable that names %q", err, tc.want)
			}
		})
	}
}

// The probe's machine is created next to other machines.
func TestProbeUsesItsOwnDirectory(t *testing.T) {
	t.Parallel()
	// Every user may run the program and enter the directory, because the VMM has its own user.
	dir, err := os.MkdirTemp("", "rik-probe-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program, file, machines := filepath.Join(dir, "qemu"), filepath.Join(dir, "file"), filepath.Join(dir, "machines")
	script := "#!/bin/sh\ncase \"$*\" in *--version*) echo QEMU emulator version 9.9.9;; *) pwd -P; exit 1;; esac\n"
	if err := errors.Join(os.WriteFile(program, []byte(script), 0o755), os.WriteFile(file, []byte("x"), 0o644)); err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Binary: program, Kernel: file, Initramfs: file, Accelerator: TCG, ProbeDir: machines})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), filepath.Join(machines, probeDir)) {
		t.Errorf("Probe() = %v, want that the program ran in %s", err, machines)
	}
	if left, err := os.ReadDir(machines); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// KVM runs only guests of the machine's own architecture.
func TestAccelerators(t *testing.T) {
	t.Parallel()
	foreign := "arm64"
	if runtime.GOARCH == foreign {
		foreign = "amd64"
	}
	for name, tc := range map[string]struct {
		c    Config
		want []string
	}{
		"own":         {Config{}, []string{KVM, TCG}},
		"own by name": {Config{Architecture: runtime.GOARCH}, []string{KVM, TCG}},
		"foreign":     {Config{Architecture: foreign}, []string{TCG}},
		"only KVM":    {Config{Accelerator: KVM}, []string{KVM}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := New(tc.c)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, d.config.accelerators()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
