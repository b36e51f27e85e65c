package shim_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/launch"
)

// machine returns the VMM process of a machine with a small image. It runs as a user without
// permissions.
func (p *place) machine(channel string) launch.Process {
	p.Helper()
	files := os.Getenv("RIK_GUEST")
	if files == "" {
		p.Fatal("RIK_GUEST names no directory with the guest's kernel and initramfs: hack/test.sh sets it")
	}
	// The VMM's user owns only its directory.
	dir := filepath.Dir(channel)
	root := filepath.Join(p.dir, "root")
	program, err := os.ReadFile("/usr/bin/busybox")
	if err != nil {
		p.Fatalf("the test needs Debian's busybox-static: %v", err)
	}
	for _, err := range []error{
		os.Chmod(p.dir, 0o755), os.Mkdir(dir, 0o700), os.MkdirAll(filepath.Join(root, "bin"), 0o755),
		os.WriteFile(filepath.Join(root, "bin", "sh"), program, 0o755),
	} {
		if err != nil {
			p.Fatal(err)
		}
	}
	image := filepath.Join(dir, "image")
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-d", root, image, "16M").CombinedOutput(); err != nil {
		p.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	argv := []string{
		"qemu-system-x86_64", "-M", "microvm,accel=tcg,pit=on,pic=on,rtc=on,acpi=on", "-cpu", "max", "-m", "256", "-nodefaults", "-no-user-config",
		"-nographic", "-no-reboot", "-serial", "stdio", "-kernel", filepath.Join(dir, "kernel"), "-initrd", filepath.Join(dir, "initramfs"),
		"-append", "console=ttyS0 " + guest.CommandLine + p.clock(), "-drive", "id=image,if=none,format=raw,readonly=on,file=" + image, "-device", "virtio-blk-device,drive=image,serial=image",
		"-device", "virtio-serial-device", "-chardev", "socket,id=channel,server=on,wait=off,path=" + channel,
		"-device", "virtserialport,chardev=channel,name=" + guest.PortName,
	}
	for _, name := range []string{"kernel", "initramfs"} {
		data, err := os.ReadFile(filepath.Join(files, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		}
		if err != nil {
			p.Fatal(err)
		}
	}
	if out, err := exec.Command("chown", "-R", "54321:54322", dir).CombinedOutput(); err != nil {
		p.Fatalf("chown: %v: %s", err, out)
	}
	return launch.Process{Argv: argv, Env: []string{"PATH=/usr/bin:/bin", "HOME=" + dir}, Dir: dir, UID: testUser, GID: testGroup}
}

// bootsAtMost is the maximum number of boots of a machine whose kernel measures its timer
// wrongly, because other tests use the processor. Its init then powers it off. The Pod driver
// also boots it again.
const bootsAtMost = 5

// boot starts the microVM and links its guest.
func (p *place) boot(c *shim.Client, machine launch.Process, link shim.Link) {
	p.Helper()
	for attempt := 1; ; attempt++ {
		vmm, err := c.Start(p.ctx, p.process("vmm", attempt, machine))
		if err != nil || vmm.PID == 0 {
			p.Fatalf("Start() of the VMM = %+v, %v", vmm, err)
		}
		if err = c.Link(p.ctx, link); err == nil {
			return
		}
		console := p.log("vmm")
		if attempt == bootsAtMost || !strings.Contains(console, guest.PausedMessage) {
			p.Fatalf("Link() = %v; the console output is %s", err, console)
		}
		p.awaitExit(c)
	}
}

// clock returns kernel parameters with the rate of the time-stamp counter. Under software
// emulation the kernel cannot always measure it, and then hangs.
func (p *place) clock() string {
	p.Helper()
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		p.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "cpu MHz")
	number, _, _ := strings.Cut(rest, "\n")
	mhz, err := strconv.ParseFloat(strings.Trim(number, "\t :"), 64)
	if !found || err != nil {
		return "" // not a processor that has one
	}
	return fmt.Sprintf(" tsc_early_khz=%d tsc=reliable cryptomgr.notests=1 %s=62500000", int(mhz*1000), guest.TimerParameter)
}

// A microVM from end to end: its VMM is a plain process, its guest is linked, and the process in
// it is a container like any other.
func TestPrivilegedShimRunsAMicroVM(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	channel := filepath.Join(p.dir, "vm", "channel")
	link := shim.Link{Channel: guest.Channel{Socket: channel}, Socket: filepath.Join(p.dir, "lent"), TimeoutMillis: timeout.Milliseconds()}
	p.boot(c, p.machine(channel), link)
	g := guest.New(shim.GuestOpener(link.Socket))
	if err := g.Configure(p.ctx, guest.Config{Hostname: "within", Time: time.Now(), Entropy: bytes.Repeat([]byte{1}, 64)}); err != nil {
		t.Fatal(err)
	}
	run := func(name, script string) shim.Start {
		order := p.guestRun(name, 1, "/bin/sh", "-c", script)
		order.Guest.Root = guest.Disk{ID: "image"}
		return order
	}
	if _, err := c.Start(p.ctx, run("a", `read name < /proc/sys/kernel/hostname; echo "in $name"; echo "with $A" >&2; exit 7`)); err != nil {
		t.Fatal(err)
	}
	if e := p.awaitExit(c); e.Name != "a" || e.ExitCode != 7 || e.Message != "" {
		t.Errorf("end = %+v", e)
	}
	if text := p.log("a"); !strings.Contains(text, "in within\n") || !strings.Contains(text, "with 1\n") {
		t.Errorf("log = %q", text)
	}
	// A container in the guest outlives the agent's connection and receives signals.
	if _, err := c.Start(p.ctx, run("b", `trap 'exit 9' TERM; echo ready; while :; do :; done`)); err != nil {
		t.Fatal(err)
	}
	p.awaitLog("b", "ready")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := shim.Connect(p.ctx, p.socket())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Link(p.ctx, link); err != nil {
		t.Fatal(err)
	}
	if err := c.Signal(p.ctx, "b", syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e := p.awaitExit(c); e.Name != "b" || e.ExitCode != 9 {
		t.Errorf("end = %+v", e)
	}
	// The end of the VMM ends everything.
	if _, err := c.Start(p.ctx, run("c", `while :; do :; done`)); err != nil {
		t.Fatal(err)
	}
	if err := c.Signal(p.ctx, "vmm", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ends := map[string]shim.Container{}
	for range 2 {
		e := p.awaitExit(c)
		ends[e.Name] = e
	}
	if e := ends["c"]; e.ExitCode != 137 || !strings.Contains(e.Message, "microVM") {
		t.Errorf("end of what ran in it = %+v", e)
	}
	if e := ends["vmm"]; e.ExitCode != 137 {
		t.Errorf("end of the VMM = %+v", e)
	}
	if err := c.Shutdown(p.ctx); err != nil {
		t.Error(err)
	}
}
