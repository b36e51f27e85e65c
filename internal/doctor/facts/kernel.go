package facts

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/riklet/netns"
	"rik.dev/rik/internal/riklet/network/iptables"
	"rik.dev/rik/internal/riklet/network/proxy"
)

func (g *gatherer) kernel(ctx context.Context) doctor.Kernel {
	k := doctor.Kernel{Loaded: map[string]bool{}, Builtin: map[string]bool{}, Installed: map[string]bool{}}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		k.Release = unix.ByteSliceToString(name.Release[:])
	}
	k.Config = kernelConfig(k.Release)
	eachLine("/proc/modules", func(line string) {
		module, _, _ := strings.Cut(line, " ")
		k.Loaded[module] = true
	})
	dir := filepath.Join("/lib/modules", k.Release)
	eachLine(filepath.Join(dir, "modules.builtin"), func(line string) { k.Builtin[moduleName(line)] = true })
	eachLine(filepath.Join(dir, "modules.dep"), func(line string) {
		file, _, _ := strings.Cut(line, ":")
		k.Installed[moduleName(file)] = true
	})
	k.Probes = probeFeatures(ctx)
	return k
}

// moduleName returns the name of a module from its file, such as kernel/net/veth.ko.xz.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(strings.TrimSpace(file)), ".")
	return strings.ReplaceAll(name, "-", "_")
}

// eachLine passes the lines of a file. A file that does not exist has none.
func eachLine(path string, line func(string)) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		line(scanner.Text())
	}
}

// kernelConfig reads the configuration from the first place that has one. It returns nil if none has.
func kernelConfig(release string) map[string]string {
	if f, err := os.Open("/proc/config.gz"); err == nil {
		defer f.Close()
		if unpacked, err := gzip.NewReader(f); err == nil {
			return parseConfig(unpacked)
		}
	}
	for _, path := range []string{"/boot/config-" + release, filepath.Join("/lib/modules", release, "config"), filepath.Join("/usr/lib/modules", release, "config")} {
		if f, err := os.Open(path); err == nil {
			defer f.Close()
			return parseConfig(f)
		}
	}
	return nil
}

// parseConfig reads lines such as CONFIG_VETH=m and # CONFIG_VETH is not set.
func parseConfig(r io.Reader) map[string]string {
	config := map[string]string{}
	for scanner := bufio.NewScanner(r); scanner.Scan(); {
		line := scanner.Text()
		if option, ok := strings.CutSuffix(strings.TrimPrefix(line, "# "), " is not set"); ok {
			config[option] = "n"
		} else if option, value, ok := strings.Cut(line, "="); ok && strings.HasPrefix(option, "CONFIG_") {
			config[option] = value
		}
	}
	return config
}

// probeFeatures tries the features that rik uses. Without root, most are not tried.
func probeFeatures(ctx context.Context) map[doctor.Feature]doctor.Probe {
	probes := map[doctor.Feature]doctor.Probe{
		doctor.FeatureSeccomp: probe(trySeccomp()),
		doctor.FeatureKVM:     probe(tryKVM()),
	}
	if os.Geteuid() != 0 {
		return probes
	}
	probes[doctor.FeatureUsers] = probe(tryUsers(ctx))
	probes[doctor.FeatureOverlay] = probe(tryOverlay())
	namespace, err := netns.New()
	if err != nil {
		for _, f := range []doctor.Feature{doctor.FeatureVeth, doctor.FeatureBridge, doctor.FeatureVXLAN, doctor.FeatureTUN, doctor.FeatureRules} {
			probes[f] = probe(err)
		}
		return probes
	}
	defer namespace.Close() // the kernel removes what is in it
	for feature, link := range map[doctor.Feature]netlink.Link{
		doctor.FeatureVeth:   &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe0"}, PeerName: "probe1"},
		doctor.FeatureBridge: &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "probe2"}},
		doctor.FeatureVXLAN:  &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "probe3"}, VxlanId: 1, Port: 8472},
	} {
		probes[feature] = probe(netns.Within(namespace, func() error { return netlink.LinkAdd(link) }))
	}
	probes[doctor.FeatureTUN] = probe(netns.Within(namespace, tryTUN))
	probes[doctor.FeatureRules] = probe(netns.Within(namespace, func() error { return tryRules(ctx) }))
	return probes
}

// tryRules writes rules with every match and target into the namespace.
func tryRules(ctx context.Context) error {
	tool, _, err := iptables.Find(ctx)
	if err != nil {
		return err
	}
	return tool.Try(ctx, proxy.Render(proxy.Sample()))
}

// tryTUN opens a TAP device, which ends with its file.
func tryTUN() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "opening", Path: "/dev/net/tun", Err: err}
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("probe4")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("creating a TAP device: %w", err)
	}
	return nil
}

// Constants of linux/seccomp.h and linux/kvm.h.
const (
	seccompGetActionAvail = 2
	seccompRetErrno       = 0x00050000
	kvmGetAPIVersion      = 0xAE00
	kvmCreateVM           = 0xAE01
	kvmAPIVersion         = 12
)

// trySeccomp asks whether filters can refuse a system call.
func trySeccomp() error {
	action := uint32(seccompRetErrno)
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, seccompGetActionAvail, 0, uintptr(unsafe.Pointer(&action))); errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

// tryKVM creates a machine without a processor. Whether a guest runs, the node finds out when it
// starts: that takes seconds.
func tryKVM() error {
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "opening", Path: "/dev/kvm", Err: err}
	}
	defer unix.Close(fd)
	version, err := unix.IoctlRetInt(fd, kvmGetAPIVersion)
	if err != nil || version != kvmAPIVersion {
		return fmt.Errorf("/dev/kvm has version %d of the interface, not %d: %w", version, kvmAPIVersion, errors.Join(err))
	}
	machine, err := unix.IoctlRetInt(fd, kvmCreateVM)
	if err != nil {
		return fmt.Errorf("creating a virtual machine: %w", err)
	}
	return unix.Close(machine)
}

// tryUsers starts a program in a user namespace.
func tryUsers(ctx context.Context) error {
	c := exec.CommandContext(ctx, "true")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	return c.Run()
}

// tryOverlay mounts an overlay in a mount namespace that ends with its thread.
func tryOverlay() error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		done <- mountOverlay()
	}()
	return <-done
}

func mountOverlay() error {
	// A thread shares its root and working directory with others until it unshares them.
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	const place = "/tmp"
	if err := unix.Mount("tmpfs", place, "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	for _, dir := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(place, dir), 0o700); err != nil {
			return err
		}
	}
	if err := unix.Mount("overlay", filepath.Join(place, "merged"), "overlay", 0, "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work"); err != nil {
		return fmt.Errorf("mounting an overlay: %w", err)
	}
	return nil
}
