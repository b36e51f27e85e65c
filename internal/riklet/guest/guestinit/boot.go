package guestinit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
)

// Paths of the machine's own file systems. Containers cannot see them.
const (
	runDir     = "/run/rik"
	moduleList = "/modules/order"
	moduleDir  = "/modules"
)

// Main runs process 1. It does not return: it prints an error on the console and powers the
// machine off.
func Main() {
	console("rik-init: up")
	err := boot()
	console("rik-init: %v", err)
	unix.Sync()
	powerOff()
}

// console writes a line to the kernel's log, which appears on the serial console. It works
// before anything is mounted, and never blocks for long.
func console(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

func boot() error {
	if err := mountBase(); err != nil {
		return err
	}
	if err := checkTimer(); err != nil {
		return err
	}
	loadModules()
	kernel, err := newKernel()
	if err != nil {
		return err
	}
	server := NewServer(kernel, console)
	handleShutdown(server, kernel)
	return serveChannel(server)
}

// baseMount is one of the file systems that the init itself needs.
type baseMount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

var baseMounts = []baseMount{
	{"proc", "proc", "proc", quiet, ""},
	{"sysfs", "sys", "sysfs", quiet, ""},
	{"devtmpfs", "dev", "devtmpfs", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0755"},
	{"cgroup2", "sys/fs/cgroup", "cgroup2", quiet, ""},
	{"tmpfs", "run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
}

// mountBase moves the root to a tmpfs and mounts the other file systems below it. Containers
// need pivot_root, which does not work from the kernel's first root.
func mountBase() error {
	const root = "/newroot"
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("mounting the root file system: %w", err)
	}
	for _, m := range baseMounts {
		target := filepath.Join(root, m.target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	// The modules are still in the old root. This bind mount keeps them reachable.
	if err := unix.Mkdir(root+moduleDir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(moduleDir, root+moduleDir, "", unix.MS_BIND, ""); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("moving the modules: %w", err)
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the root file system: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("entering the root file system: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	return os.MkdirAll(runDir, 0o700)
}

// loadModules loads the modules for the kernel's devices, in the order of the list. A module
// that is missing or refused may be built in, or its device may not exist.
func loadModules() {
	list, err := os.ReadFile(moduleList)
	if err != nil {
		return // a kernel without modules
	}
	for name := range strings.FieldsSeq(string(list)) {
		if err := loadModule(filepath.Join(moduleDir, filepath.Base(name))); err != nil && !errors.Is(err, unix.EEXIST) {
			console("rik-init: module %s: %v", name, err)
		}
		// The kernel has its own copy in memory.
		_ = os.Remove(filepath.Join(moduleDir, filepath.Base(name)))
	}
	_ = unix.Unmount(moduleDir, unix.MNT_DETACH)
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// handleShutdown shuts down when the kernel reports Ctrl-Alt-Del, with which Firecracker and other
// VMMs request a shutdown.
func handleShutdown(server *Server, kernel *Kernel) {
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		if err := server.Stop(); err != nil {
			console("rik-init: shutting down: %v", err)
		}
		kernel.PowerOff()
	}()
}

// powerOff ends the VM. Without ACPI, Linux cannot power a machine off and would only halt it.
// It is reset instead, which ends the VMM (see guest.CommandLine).
func powerOff() {
	unix.Sync()
	how := unix.LINUX_REBOOT_CMD_RESTART
	if _, err := os.Stat("/sys/firmware/acpi/tables"); err == nil {
		how = unix.LINUX_REBOOT_CMD_POWER_OFF
	}
	if err := unix.Reboot(how); err != nil {
		console("rik-init: powering off: %v", err)
	}
	select {}
}

// channelInterval is the first pause between reads of a port without a peer. It doubles up to
// channelTimeout, so that a guest without a node uses little CPU. portTimeout is how long the port
// may take to appear before the init tries vsock.
const (
	channelInterval = 10 * time.Millisecond
	channelTimeout  = 80 * time.Millisecond
	portTimeout     = 2 * time.Second
)

// serveChannel serves sessions, one after the other, forever.
func serveChannel(server *Server) error {
	deadline := time.Now().Add(portTimeout)
	for {
		if path, ok := findPort(); ok {
			return servePort(server, path)
		}
		l, err := listenVsock(guest.VsockPort)
		if err == nil {
			return serveVsock(server, l)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("finding the channel to the node: there is no virtio-serial port %q and no vsock: %w", guest.PortName, err)
		}
		time.Sleep(channelInterval)
	}
}

// findPort finds the device of the port by its name.
func findPort() (string, bool) {
	names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err == nil && strings.TrimSpace(string(text)) == guest.PortName {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(name))), true
		}
	}
	return "", false
}

// servePort reopens the port for each session, which discards data of the last one.
func servePort(server *Server, path string) error {
	for {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("opening the channel: %w", err)
		}
		_ = server.Serve(&port{ReadWriteCloser: f})
		_ = f.Close()
	}
}

// port is a virtio-serial port. While it has no peer, reads return the end of the stream. Until
// the first byte, Read waits instead.
type port struct {
	io.ReadWriteCloser
	began bool
}

func (p *port) Read(b []byte) (int, error) {
	for pause := channelInterval; ; pause = min(2*pause, channelTimeout) {
		n, err := p.ReadWriteCloser.Read(b)
		if n > 0 {
			p.began = true
		}
		if p.began || !errors.Is(err, io.EOF) {
			return n, err
		}
		time.Sleep(pause)
	}
}
