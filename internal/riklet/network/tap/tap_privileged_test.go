package tap

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/netns"
	"rik.dev/rik/internal/testkit/netnstest"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/privileged"
)

// place creates an instance's namespace with its interface. The other end of the interface is in
// the namespace of the test.
func place(t *testing.T) (pid int, namespace *os.File) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sleep", "600")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	pid = c.Process.Pid
	namespace, err := netns.Of(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = namespace.Close() })
	ip(t, "link", "add", "node0", "mtu", "1400", "type", "veth", "peer", "name", "eth0", "address", "02:00:00:00:00:07", "mtu", "1400", "netns", strconv.Itoa(pid))
	t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", "node0").Run() })
	ip(t, "link", "set", "node0", "up")
	within(t, namespace, func() error {
		link, err := netlink.LinkByName("eth0")
		return errors.Join(err, netlink.LinkSetUp(link))
	})
	return pid, namespace
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func within(t *testing.T, namespace *os.File, work func() error) {
	t.Helper()
	if err := netns.Within(namespace, work); err != nil {
		t.Fatal(err)
	}
}

// openTAP opens the TAP as a VMM does, without the header that a VMM requests.
func openTAP(t *testing.T, namespace *os.File) *os.File {
	t.Helper()
	var tap *os.File
	within(t, namespace, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		request, err := unix.NewIfreq(Device)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		tap = os.NewFile(uintptr(fd), Device)
		return nil
	})
	t.Cleanup(func() { _ = tap.Close() })
	return tap
}

// frame has an EtherType for experiments (IEEE 802).
func frame(to, from string, text string) []byte {
	dst, _ := net.ParseMAC(to)
	src, _ := net.ParseMAC(from)
	return append(append(append(dst, src...), 0x88, 0xb5), append([]byte(text), make([]byte, 60)...)...)
}

// vnetHeader is the length of the header before every frame of the device, see virtio_net_hdr.
const vnetHeader = 10

func TestPrivilegedTAPCarriesFramesBothWays(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	pid, namespace := place(t)
	for range 2 { // a second VMM of the instance replaces the first one
		link, err := Join(Wire{PID: pid, Interface: "eth0", ReceiveBytesPerSecond: 1 << 20, TransmitBytesPerSecond: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if link.MTU != 1400 || link.MAC.String() != "02:00:00:00:00:07" {
			t.Errorf("Join() = %+v", link)
		}
		tap := openTAP(t, namespace)
		outside := packets(t, "node0")
		carries(t, outside, frame("02:00:00:00:00:07", "02:00:00:00:00:01", "to the guest"), tap, "to the guest")
		message := append(make([]byte, vnetHeader), frame("02:00:00:00:00:01", "02:00:00:00:00:07", "from the guest")...)
		carries(t, tap, message, outside, "from the guest")
		if err := errors.Join(tap.Close(), outside.Close()); err != nil {
			t.Error(err)
		}
	}
}

// packets opens a device for whole frames of the experimental type.
func packets(t *testing.T, device string) *os.File {
	t.Helper()
	index, err := net.InterfaceByName(device)
	if err != nil {
		t.Fatal(err)
	}
	const protocol = 0xb588 // in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: index.Index}); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), device)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// carries sends a frame until one with the text arrives. A device that just came up loses some
// frames, and the kernel sends some of its own.
func carries(t *testing.T, from *os.File, message []byte, to *os.File, text string) {
	t.Helper()
	buffer := make([]byte, 4096)
	poll.Until(t, time.Minute, "a frame arrives "+text, func(context.Context) error {
		if _, err := from.Write(message); err != nil {
			return err
		}
		if err := to.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		for {
			n, err := to.Read(buffer)
			if err != nil {
				return err
			}
			if bytes.Contains(buffer[:n], []byte(text)) {
				return nil
			}
		}
	})
}

func TestPrivilegedTAPOfANamespaceThatIsGone(t *testing.T) {
	privileged.Require(t)
	if _, err := Join(Wire{PID: 1 << 22, Interface: "eth0"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Join() = %v", err)
	}
	if !netnstest.Alone(t) {
		return
	}
	pid, _ := place(t)
	if _, err := Join(Wire{PID: pid, Interface: "eth9"}); err == nil || !strings.Contains(err.Error(), "eth9") {
		t.Errorf("Join() to a device that is not there = %v", err)
	}
}
