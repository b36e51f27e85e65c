package qemu

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/vmmtest"
	"rik.dev/rik/internal/testkit/privileged"
)

// envGuest names a directory with a guest's kernel and initramfs. hack/guest.sh creates it.
const envGuest = "RIK_GUEST"

// envForeign names one for the other architecture, with a program "hello" in it. hack/nightly.sh
// creates it.
const envForeign = "RIK_GUEST_FOREIGN"

func guestFiles(t *testing.T) (kernel, initramfs string) { return filesOf(t, envGuest) }

func filesOf(t *testing.T, variable string) (kernel, initramfs string) {
	t.Helper()
	dir := os.Getenv(variable)
	if dir == "" {
		t.Skipf("needs a guest: set %s to what hack/guest.sh made", variable)
	}
	return filepath.Join(dir, "kernel"), filepath.Join(dir, "initramfs")
}

func newDriver(t *testing.T, c Config) *Driver {
	t.Helper()
	if c.Kernel == "" {
		c.Kernel, c.Initramfs = guestFiles(t)
	}
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

// TestPrivilegedQemuForeign runs the conformance suite with guests of the other architecture, in
// software emulation, and a program of that architecture in one of them.
func TestPrivilegedQemuForeign(t *testing.T) {
	privileged.Require(t)
	d := newForeignDriver(t)
	kernel, initramfs := d.config.Kernel, d.config.Initramfs
	vmmtest.Run(t, vmmtest.Config{
		Driver: d, Kernel: kernel, Initramfs: initramfs, Greet: greet,
		ControlSocket: func(m vmm.Machine) string { return filepath.Join(directory(m), qmpSocket) },
	})
	t.Run("Program", func(t *testing.T) {
		m := vmmtest.Machine(t)
		m.Kernel, m.Initramfs = kernel, initramfs
		m.CommandLine = guest.CommandLine // as a node does
		m.Disks[0].Path = rootWith(t, filepath.Join(filepath.Dir(kernel), "hello"))
		vmmtest.Up(t, d, m, func(ctx context.Context, c guest.Channel) error {
			return runHello(ctx, t, c, "cloud-"+d.config.Architecture)
		})
	})
}

// newForeignDriver returns a driver for guests of the architecture that this machine does not have.
func newForeignDriver(t *testing.T) *Driver {
	t.Helper()
	kernel, initramfs := filesOf(t, envForeign)
	foreign := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	return newDriver(t, Config{Architecture: foreign, Kernel: kernel, Initramfs: initramfs, StateDir: t.TempDir()})
}

// rootWith returns an ext4 image with a program as /hello.
func rootWith(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	root, image := filepath.Join(dir, "root"), filepath.Join(dir, "image")
	content, err := os.ReadFile(program)
	if err == nil {
		err = errors.Join(os.Mkdir(root, 0o755), os.WriteFile(filepath.Join(root, "hello"), content, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-F", "-d", root, image, "32M").CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	return image
}

// runHello runs "hello -kernel", which prints the release of the guest's kernel. Its end is want.
func runHello(ctx context.Context, t *testing.T, c guest.Channel, want string) error {
	t.Helper()
	session, err := guest.Connect(ctx, c)
	if err != nil {
		return err
	}
	defer session.Close()
	g := guest.New(session.Open)
	if err := g.Configure(ctx, guest.Config{Hostname: "guest", Time: time.Now(), Entropy: make([]byte, 32)}); err != nil {
		return err
	}
	var out bytes.Buffer
	r, err := g.Run(ctx, guest.Process{Container: "main", Argv: []string{"/hello", "-kernel"}, Root: guest.Disk{ID: "root"}}, guest.Streams{Stdout: &out, Stderr: &out})
	if err != nil {
		return err
	}
	exit, err := r.Wait()
	if err != nil {
		return err
	}
	if exit.Code != 0 || !strings.Contains(out.String(), want) {
		t.Errorf("hello in the guest printed %q, exit %+v, want the kernel %q", out.String(), exit, want)
	}
	return nil
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
