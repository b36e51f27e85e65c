package guest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/testkit/output"
)

// timeout allows for a boot under software emulation while other tests run.
const timeout = 90 * time.Second

// vm is a booted machine.
type vm struct {
	guest   guest.Guest
	session *guest.Session
	exited  chan error
	console *output.Buffer
}

// boot starts a VM with the kernel and initramfs of RIK_GUEST, a busybox image and a writable
// disk, and connects to the init.
func boot(t *testing.T, extra ...string) *vm {
	t.Helper()
	files := os.Getenv("RIK_GUEST")
	if files == "" {
		t.Fatal("RIK_GUEST is not set: it is the directory of kernel and initramfs; make bin/guest, and see hack/test.sh")
	}
	dir, err := os.MkdirTemp("", "rik-boot-") // a short path, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	image, scratch := filepath.Join(dir, "image"), filepath.Join(dir, "scratch")
	mkfs(t, image, "24M", busyboxRoot(t, dir))
	mkfs(t, scratch, "64M", "")
	socket := filepath.Join(dir, "channel")
	args := []string{
		"-M", "microvm,accel=tcg,pit=on,pic=on,rtc=on,acpi=on", "-cpu", "max", "-m", "256", "-nodefaults", "-no-user-config",
		"-nographic", "-no-reboot", "-serial", "stdio",
		"-kernel", filepath.Join(files, "kernel"), "-initrd", filepath.Join(files, "initramfs"), "-append", "console=ttyS0 " + guest.CommandLine + clock(t),
		"-drive", "id=image,if=none,format=raw,readonly=on,file=" + image, "-device", "virtio-blk-device,drive=image,serial=image",
		"-drive", "id=scratch,if=none,format=raw,file=" + scratch, "-device", "virtio-blk-device,drive=scratch,serial=scratch",
		"-netdev", "user,id=net,restrict=on", "-device", "virtio-net-device,netdev=net,mac=" + testMAC,
		"-device", "virtio-serial-device", "-chardev", "socket,id=channel,server=on,wait=off,path=" + socket,
		"-device", "virtserialport,chardev=channel,name=" + guest.PortName,
	}
	args = append(args, extra...)
	m, err := begin(t, socket, args)
	for tries := 1; err != nil && tries < 5 && strings.Contains(m.console.String(), guest.PausedMessage); tries++ {
		m, err = begin(t, socket, args) // as the node does
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.session.Close() })
	m.guest = guest.New(m.session.Open)
	return m
}

// begin boots once.
func begin(t *testing.T, socket string, args []string) (*vm, error) {
	t.Helper()
	m := &vm{exited: make(chan error, 1), console: &output.Buffer{}}
	cmd := exec.Command("qemu-system-x86_64", args...)
	cmd.Stdout, cmd.Stderr = m.console, m.console
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { m.exited <- cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("the console said:\n%s", m.console)
		}
	})
	ctx, cancel := context.WithTimeoutCause(t.Context(), timeout, errors.New("the guest took too long to boot"))
	defer cancel()
	var err error
	m.session, err = guest.Connect(ctx, guest.Channel{Socket: socket})
	if err != nil {
		select { // then the console's output is complete
		case <-ended:
		case <-time.After(time.Second):
		}
	}
	return m, err
}

// clock returns kernel parameters that set the frequency of the time-stamp counter and mark it
// as reliable. In software emulation the kernel cannot measure it, and some boots then hang.
func clock(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) != "cpu MHz" {
			continue
		}
		mhz, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(" tsc_early_khz=%d tsc=reliable cryptomgr.notests=1 %s=62500000", int(mhz*1000), guest.TimerParameter)
	}
	return ""
}

const testMAC = "52:54:00:12:34:56"

func testConfig() guest.Config {
	return guest.Config{
		Hostname: "echo-1",
		Interfaces: []guest.Interface{{
			MAC: testMAC, Address: netip.MustParsePrefix("10.0.2.15/32"), Gateway: netip.MustParseAddr("10.0.2.2"), MTU: 1400,
		}},
		Hosts: "127.0.0.1 localhost\n10.0.2.15 echo-1\n", Resolv: "nameserver 10.0.2.3\n",
		Scratch: "scratch",
		Volumes: []guest.Volume{
			{Name: "data"},
			{Name: "cache", Memory: true, SizeBytes: 1 << 20},
			{Name: "settings", Projected: true, Files: []guest.File{
				{Path: "a", Mode: 0o640, Data: []byte("one")}, {Path: "deep/b", Mode: 0o644, Data: bytes.Repeat([]byte("x"), 3<<20)},
			}},
		},
		Time: time.Now(), Entropy: bytes.Repeat([]byte{7}, 64),
	}
}

func busyboxRoot(t *testing.T, dir string) string {
	t.Helper()
	root := filepath.Join(dir, "root")
	for _, d := range []string{"bin", "etc", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile("/usr/bin/busybox")
	if err != nil {
		t.Fatalf("the tests need Debian's busybox-static: %v", err)
	}
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("bin/busybox", string(program), 0o755)
	write("bin/data", "not a program", 0o644)
	write("bin/nonsense", "\x00\x01\x02", 0o755)
	write("etc/passwd", "root:x:0:0::/root:/bin/sh\nplay:x:1000:1000::/home/play:/bin/sh\n", 0o644)
	write("etc/group", "root:x:0:\nplay:x:1000:\nextra:x:2000:play\n", 0o644)
	for _, a := range strings.Fields("sh echo cat env id sleep true false ls nc mount stat touch kill tty stty date head tail dd seq test hostname ip grep wc mkdir readlink mknod ps sync") {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", a)); err != nil {
			t.Fatal(err)
		}
	}
	// Links that lead out of the root unless they are resolved inside it.
	if err := os.Symlink("/../../../nowhere/resolv.conf", filepath.Join(root, "etc/resolv.conf")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	return root
}

func mkfs(t *testing.T, path, size, from string) {
	t.Helper()
	args := []string{"-q", "-F", "-E", "lazy_itable_init=1,root_owner=0:0"}
	if from != "" {
		args = append(args, "-d", from)
	}
	if out, err := exec.Command("mkfs.ext4", append(args, path, size)...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
}

func container(name string, argv ...string) guest.Process {
	return guest.Process{Container: name, Argv: argv, Root: guest.Disk{ID: "image"}, Capabilities: []string{"CAP_CHOWN", "CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_MKNOD"}}
}

// result is the output of a process and its exit.
type result struct {
	stdout, stderr string
	exit           guest.Exit
}

func run(t *testing.T, g guest.Guest, p guest.Process, stdin io.Reader) result {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), timeout, errors.New("the process took too long"))
	defer cancel()
	var out, errs output.Buffer
	r, err := g.Run(ctx, p, guest.Streams{Stdin: stdin, Stdout: &out, Stderr: &errs})
	if err != nil {
		t.Fatalf("Run(%q): %v", p.Argv, err)
	}
	exit, err := r.Wait()
	if err != nil {
		t.Fatalf("%q: %v", p.Argv, err)
	}
	return result{out.String(), errs.String(), exit}
}
