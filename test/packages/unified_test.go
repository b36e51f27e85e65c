package packages

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/testkit/privileged"
)

// emulatedTimeout is for all that a machine does whose processor is emulated.
const emulatedTimeout = 30 * time.Minute

// TestPrivilegedUnifiedCgroups runs rik in a virtual machine with version 2 of cgroups alone. The machine of
// the tests can have version 1, and a kernel has each controller in one version only. The virtual
// machine is a Debian with systemd and Debian's kernel, which enables AppArmor, and QEMU emulates it.
func TestPrivilegedUnifiedCgroups(t *testing.T) {
	privileged.Require(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("not run: the virtual machine is for amd64")
	}
	guest, initramfs := environment(t, "RIK_GUEST"), environment(t, "RIK_DISK_INITRAMFS")
	dir := t.TempDir()
	disk := writeDisk(t, dir, guest)
	console := filepath.Join(dir, "console")
	ctx, cancel := context.WithTimeout(t.Context(), emulatedTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2", "-m", "2048",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "file:"+console,
		"-kernel", filepath.Join(guest, "kernel"), "-initrd", initramfs, "-drive", "file="+disk+",format=raw,if=virtio,cache=unsafe",
		// Without udev, no terminal of a serial port is ready.
		"-append", "console=ttyS0 panic=-1 systemd.unified_cgroup_hierarchy=1 systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the virtual machine: %v\n%s", err, out)
	}
	text, err := os.ReadFile(console)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, found := range regexp.MustCompile(`(?m)^RESULT (\S+) (.*?)\r?$`).FindAllStringSubmatch(string(text), -1) {
		got[found[1]] = found[2]
	}
	want := map[string]string{
		"filesystem": "cgroup2fs", "apparmor": "Y", "v1": "0", "answer": "yes", "memory": "67108864", "cpu": "50000 100000", "pids": "4096",
		"eater": "OOMKilled", "survives": "yes", "doctor": "ok", "left": "0", "end": "yes",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("in the virtual machine (-want +got):\n%s\nIts console:\n%s", diff, text)
	}
}

// writeDisk writes the file system of a Debian on which rik is installed, and which runs the test's
// script when it has started.
func writeDisk(t *testing.T, dir, guest string) string {
	t.Helper()
	host := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	root, disk := filepath.Join(dir, "root"), filepath.Join(dir, "disk")
	host("cp", "-a", "--reflink=auto", environment(t, "RIK_DEBIAN_ROOT"), root)
	host("mkdir", "-p", filepath.Join(root, "test"))
	host("cp", "-r", "-t", filepath.Join(root, "test"), environment(t, "RIK_SAMPLE_IMAGE"), "testdata/unified.sh", "testdata/unified.yaml")

	// The kernel's modules, of which rik loads those that it needs.
	named, err := os.ReadFile(filepath.Join(guest, "package"))
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(string(named), "=")
	release := strings.TrimPrefix(name, "linux-image-")
	modules := filepath.Join(root, "lib/modules", release)
	host("mkdir", "-p", modules)
	host("cp", "-r", filepath.Join(guest, "modules"), filepath.Join(modules, "kernel"))
	host("chroot", root, "depmod", release)

	// Installing the packages in the emulated machine would take minutes.
	debs, err := filepath.Glob(filepath.Join(environment(t, "RIK_PACKAGES"), "*.deb"))
	if err != nil || len(debs) == 0 {
		t.Fatalf("no packages: %v", err)
	}
	host("cp", append([]string{"-t", filepath.Join(root, "tmp")}, debs...)...)
	host("chroot", root, "env", "DEBIAN_FRONTEND=noninteractive", "sh", "-c", "dpkg -i /tmp/*.deb && rm /tmp/*.deb")

	units := filepath.Join(root, "etc/systemd/system")
	text := "[Unit]\nAfter=multi-user.target\n[Service]\nType=oneshot\nExecStart=/bin/bash /test/unified.sh\n"
	if err := os.WriteFile(filepath.Join(units, "unified.service"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../unified.service", filepath.Join(units, "multi-user.target.wants", "unified.service")); err != nil {
		t.Fatal(err)
	}
	host("truncate", "-s", "4G", disk)
	host("mkfs.ext4", "-q", "-d", root, disk)
	return disk
}
