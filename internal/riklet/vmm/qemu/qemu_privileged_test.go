package qemu

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/vmmtest"
	"rik.dev/rik/internal/testkit/privileged"
)

// envGuest names a directory with a guest's kernel and initramfs. hack/guest.sh creates it.
const envGuest = "RIK_GUEST"

func guestFiles(t *testing.T) (kernel, initramfs string) {
	t.Helper()
	dir := os.Getenv(envGuest)
	if dir == "" {
		t.Skipf("needs a guest: set %s to what hack/guest.sh made", envGuest)
	}
	return filepath.Join(dir, "kernel"), filepath.Join(dir, "initramfs")
}

func newDriver(t *testing.T, c Config) *Driver {
	t.Helper()
	c.Kernel, c.Initramfs = guestFiles(t)
	c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPrivilegedQemu runs the conformance suite with guests that really boot. Each VMM has its
// own user.
func TestPrivilegedQemu(t *testing.T) {
	privileged.Require(t)
	d := newDriver(t, Config{StateDir: t.TempDir()})
	kernel, initramfs := guestFiles(t)
	probePrivately(t, d)
	vmmtest.Run(t, vmmtest.Config{
		Driver: d, Kernel: kernel, Initramfs: initramfs, Greet: greet,
		ControlSocket: func(m vmm.Machine) string { return filepath.Join(directory(m), qmpSocket) },
	})
}

// probePrivately runs the probe with a temporary directory that only root can enter.
func probePrivately(t *testing.T, d *Driver) {
	t.Helper()
	private := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	before := os.TempDir()
	t.Setenv("TMPDIR", private)
	if _, err := d.Probe(t.Context()); err != nil {
		t.Fatalf("Probe() with a private TMPDIR = %v", err)
	}
	t.Setenv("TMPDIR", before)
}

// greet checks the health of the guest's init.
func greet(ctx context.Context, c guest.Channel) error {
	session, err := guest.Connect(ctx, c)
	if err != nil {
		return err
	}
	defer session.Close()
	return guest.New(session.Open).Health(ctx)
}
