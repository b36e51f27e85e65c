// Package vmmtest is the conformance suite of vmm.Driver, also for the fake.
//
// Run starts the drivers' processes as the drivers' users, and checks the guarantees of the
// contract. It covers refused machines, the states and their changes, snapshots, several agents
// at once, a VMM that dies, and one that sends wrong answers. It also checks that no files are
// left.
package vmmtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/vmm"
)

// Config configures the suite.
type Config struct {
	Driver vmm.Driver
	// Kernel and Initramfs are the files from which the driver's machines start.
	Kernel, Initramfs string
	// Greet returns nil when a guest answers on its channel; it waits until ctx ends. Nil means
	// that the driver boots no guest here, and the result says so.
	Greet func(ctx context.Context, c guest.Channel) error
	// ControlSocket returns the socket of a machine's VMM. The suite puts hostile peers there.
	ControlSocket func(m vmm.Machine) string
	// Timeout limits every wait for a process or a guest; 0 means a minute.
	Timeout time.Duration
}

// suite is a Config and the result of Probe.
type suite struct {
	Config
	found vmm.Capabilities
}

// Run runs the suite. As root, every VMM runs as a different user; otherwise as the caller.
func Run(t *testing.T, c Config) {
	c.Timeout = cmp.Or(c.Timeout, time.Minute)
	s := &suite{Config: c}
	s.probe(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Validate", s.validate},
		{"Prepare", s.prepare},
		{"ConnectTooEarly", s.connectTooEarly},
		{"Life", s.lifecycle},
		{"Snapshot", s.snapshot},
		{"Connections", s.connections},
		{"Killed", s.killed},
		{"Hostile", s.hostile},
	} {
		t.Run(test.name, test.run)
	}
}

func (s *suite) probe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*s.Timeout)
	defer cancel()
	found, err := s.Driver.Probe(ctx)
	if err != nil {
		t.Fatalf("Probe() = %v, want a machine that runs VMs", err)
	}
	again, err := s.Driver.Probe(ctx)
	if err != nil || again != found {
		t.Errorf("Probe() again = %+v, %v, want the same as before, %+v", again, err, found)
	}
	if found.Version == "" {
		t.Error("Probe() gives no version")
	}
	s.found = found
	t.Logf("%s %s, accelerator %q, snapshots %v, disk limits %v, network limits %v", s.Driver.Name(), found.Version, found.Accelerator, found.Snapshot, found.DiskLimits, found.NetworkLimits)
	if !found.Guest {
		t.Logf("NO GUEST WAS BOOTED: what follows shows only what the driver and its VMM say to each other")
	}
	if found.Guest && s.Greet == nil {
		t.Error("Probe() booted a guest, but the suite was given no way to greet one")
	}
}

// users counts up, so that no two machines of a run have the same user.
var users atomic.Uint32

// firstUser is far from the IDs that systems assign to people or services.
const firstUser = 64100

// Machine returns a machine with a read-only and a writable disk, a new directory and a new
// user, but without a kernel.
func Machine(t *testing.T) vmm.Machine {
	t.Helper()
	// Not t.TempDir, because its names are too long for sockets.
	base, err := os.MkdirTemp("", "vmm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Errorf("something is left that cannot be removed: %v", err)
		}
	})
	m := vmm.Machine{
		ID: fmt.Sprintf("vmmtest-%d", users.Add(1)), Dir: filepath.Join(base, "m"), VCPUs: 1, MemoryBytes: 160 << 20,
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	}
	if m.UID == 0 {
		m.UID = firstUser + users.Load()
		m.GID = m.UID
	}
	for _, dir := range []string{base, m.Dir} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	m.Disks = []vmm.Disk{
		{ID: "root", Path: image(t, base, "root.img", 0o644), ReadOnly: true},
		{ID: "scratch", Path: image(t, base, "scratch.img", 0o600), BytesPerSecond: 64 << 20, OperationsPerSecond: 10000},
	}
	return m
}

// Start prepares a machine, starts its VMM and connects to it. The end of the test removes all
// of it.
func Start(t *testing.T, d vmm.Driver, m vmm.Machine) vmm.VM {
	t.Helper()
	s := &suite{Config: Config{Driver: d, Timeout: time.Minute}}
	t.Cleanup(func() { s.clean(t, m) })
	s.boot(t, m)
	return s.connect(s.context(t), t, m)
}

// Up is Start for a machine with a guest: it also starts the VM, and waits until greet reaches
// the guest's init. If a kernel measures its timer wrongly because other tests use the
// processor, the machine boots again, as on a node.
func Up(t *testing.T, d vmm.Driver, m vmm.Machine, greet func(context.Context, guest.Channel) error) vmm.VM {
	t.Helper()
	s := &suite{Config: Config{Driver: d, Timeout: time.Minute, Greet: greet}}
	t.Cleanup(func() { s.clean(t, m) })
	_, v := s.up(t, m, nil)
	return v
}

// machine returns a machine with the suite's kernel. The end of the test removes it.
func (s *suite) machine(t *testing.T) vmm.Machine {
	t.Helper()
	m := Machine(t)
	m.Kernel, m.Initramfs = s.Kernel, s.Initramfs
	t.Cleanup(func() { s.clean(t, m) })
	return m
}

// clean checks that Cleanup leaves the directory as it was: empty, and owned by root.
func (s *suite) clean(t *testing.T, m vmm.Machine) {
	t.Helper()
	for range 2 {
		if err := s.Driver.Cleanup(context.WithoutCancel(t.Context()), m); err != nil {
			t.Errorf("Cleanup() = %v, want nil, also twice", err)
		}
	}
	if left := entries(t, m.Dir); len(left) > 0 {
		t.Errorf("Cleanup() left %v in the machine's directory", left)
	}
	for _, d := range m.Disks {
		if _, err := os.Stat(d.Path); err != nil {
			t.Errorf("Cleanup() took a disk with it: %v", err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), m.Dir) {
		t.Errorf("Cleanup() left a mount below %s", m.Dir)
	}
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func image(t *testing.T, dir, name string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, make([]byte, 1<<20), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// context returns a context that ends after the suite's timeout.
func (s *suite) context(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.Timeout)
	t.Cleanup(cancel)
	return ctx
}

func wantState(ctx context.Context, t *testing.T, v vmm.VM, want vmm.State) {
	t.Helper()
	if got, err := v.State(ctx); err != nil || got != want {
		t.Fatalf("State() = %q, %v, want %q", got, err, want)
	}
}

func wantGone(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, vmm.ErrGone) {
		t.Errorf("%s = %v, want ErrGone", what, err)
	}
}
