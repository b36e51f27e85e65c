package bridge

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/network/tap"
	"rik.dev/rik/internal/testkit/privileged"
)

// forger sends arbitrary frames from an instance.
type forger func(frame []byte) error

// rawSocket is a forger with what CAP_NET_RAW gives to a container.
func rawSocket(t *testing.T, in *namespace) forger {
	t.Helper()
	var fd int
	var to unix.SockaddrLinklayer
	in.do(func() error {
		device, err := net.InterfaceByName(inside)
		if err != nil {
			return err
		}
		to.Ifindex = device.Index
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func(frame []byte) error { return unix.Sendto(fd, frame, 0, &to) }
}

// guestKernel is a forger with what a microVM's kernel has: the other end of the VMM's TAP.
func guestKernel(t *testing.T, in *namespace) forger {
	t.Helper()
	if _, err := tap.Join(tap.Wire{PID: in.pid, Interface: inside}); err != nil {
		t.Fatal(err)
	}
	var device *os.File
	in.do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		device = os.NewFile(uintptr(fd), tap.Device)
		request, err := unix.NewIfreq(tap.Device)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	})
	t.Cleanup(func() { _ = device.Close() })
	return func(frame []byte) error {
		_, err := device.Write(append(make([]byte, 10), frame...)) // virtio_net_hdr
		return err
	}
}

// neighborEntries returns the entries of the host and the victim about each other.
func neighborEntries(host, victim *namespace) string {
	host.Helper()
	var entries []string
	for line := range strings.Lines(host.run("bridge", "fdb", "show", "br", DefaultName)) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[0], "02:72:") && f[2] != DefaultName {
			entries = append(entries, f[0]+" "+f[2])
		}
	}
	slices.Sort(entries)
	return host.run("ip", "neigh", "show", victimAddress.String()) + victim.run("ip", "neigh", "show", gatewayAddress.String()) + fmt.Sprint(entries)
}

func TestPrivilegedAddressSpoofingIsBlocked(t *testing.T) {
	privileged.Require(t)
	for name, start := range map[string]func(*testing.T, *namespace) forger{"container": rawSocket, "microVM": guestKernel} {
		t.Run(name, func(t *testing.T) {
			host, s := newSwitch(t)
			in, victim := newNamespace(t), newNamespace(t)
			mustAttach(t, s, "u1", in)
			mustAttach(t, s, "u2", victim)
			send := start(t, in)
			want := neighborEntries(host, victim)
			for _, part := range []string{
				"10.62.7.3 dev rik0 lladdr 02:72:0a:3e:07:03 PERMANENT", "10.62.7.1 dev eth0 lladdr 02:72:0a:3e:07:01 PERMANENT",
				"02:72:0a:3e:07:03 " + Device("u2"),
			} {
				if !strings.Contains(want, part) {
					t.Errorf("known before: %s\nwant %s", want, part)
				}
			}
			receivesOnlyGenuine(t, host, gatewayAddress, func() { forge(t, send) })
			receivesOnlyGenuine(t, victim, victimAddress, func() { forge(t, send) })
			if got := neighborEntries(host, victim); got != want {
				t.Errorf("after forged frames: %s\nwant %s", got, want)
			}
			// Even without the filter, forged ARP and forged MACs have no effect.
			host.run("tc", "qdisc", "del", "dev", Device("u1"), "ingress")
			forge(t, send)
			if got := neighborEntries(host, victim); got != want {
				t.Errorf("after forged frames that passed the filter: %s\nwant %s", got, want)
			}
			talk(t, host, victim, victimAddress.String(), "", gatewayAddress.String())
			talk(t, victim, host, gatewayAddress.String(), "", victimAddress.String())
		})
	}
}

// forgeARP claims to be the victim and to be the gateway, in broadcasts and in replies to the
// other of the two.
func forgeARP(t *testing.T, send forger) {
	t.Helper()
	own := MAC(forgerAddress)
	for _, frame := range [][]byte{
		ethernet(MAC(gatewayAddress), own, unix.ETH_P_ARP, says(victimAddress, own, gatewayAddress)),
		ethernet(MAC(victimAddress), own, unix.ETH_P_ARP, says(gatewayAddress, own, victimAddress)),
		ethernet(allAddresses, own, unix.ETH_P_ARP, says(victimAddress, own, victimAddress)),
		ethernet(allAddresses, own, unix.ETH_P_ARP, says(gatewayAddress, own, gatewayAddress)),
	} {
		if err := send(frame); err != nil {
			t.Fatal(err)
		}
	}
}

const seen = 9999

// forge sends forged frames, and a genuine one last, which shows that all have arrived.
func forge(t *testing.T, send forger) {
	t.Helper()
	forgeARP(t, send)
	for _, to := range [][]byte{MAC(gatewayAddress), MAC(victimAddress)} {
		for _, f := range []struct {
			kind  uint16
			bytes []byte
			from  net.HardwareAddr
		}{
			{unix.ETH_P_IP, datagram(victimAddress, gatewayAddress, seen, "forged"), MAC(forgerAddress)},
			{unix.ETH_P_IP, datagram(gatewayAddress, victimAddress, seen, "forged"), MAC(forgerAddress)},
			{unix.ETH_P_IP, datagram(forgerAddress, gatewayAddress, seen, "forged"), MAC(victimAddress)},
			{unix.ETH_P_IP, datagram(forgerAddress, victimAddress, seen, "forged"), MAC(victimAddress)},
			{unix.ETH_P_IP, datagram(forgerAddress, gatewayAddress, seen, "true"), MAC(forgerAddress)},
			{unix.ETH_P_IP, datagram(forgerAddress, victimAddress, seen, "true"), MAC(forgerAddress)},
		} {
			if err := send(ethernet(to, f.from, f.kind, f.bytes)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// receivesOnlyGenuine calls send, and checks that only genuine datagrams arrive at an address.
func receivesOnlyGenuine(t *testing.T, n *namespace, at interface{ String() string }, send func()) {
	t.Helper()
	var conn net.PacketConn
	n.do(func() (err error) {
		conn, err = net.ListenPacket("udp", net.JoinHostPort(at.String(), fmt.Sprint(seen)))
		return err
	})
	defer conn.Close()
	send()
	buffer := make([]byte, 64)
	_ = conn.SetDeadline(time.Now().Add(timeout))
	got, from, err := conn.ReadFrom(buffer)
	if err != nil || string(buffer[:got]) != "true" || !strings.HasPrefix(from.String(), forgerAddress.String()+":") {
		t.Errorf("%s receives %q from %v first, %v; want the genuine datagram", at, buffer[:got], from, err)
	}
}

// The next check restores what another program removed, and removes entries of no instance.
func TestPrivilegedGuardsAreRepaired(t *testing.T) {
	privileged.Require(t)
	host, s := newSwitch(t)
	in, victim := newNamespace(t), newNamespace(t)
	mustAttach(t, s, "u1", in)
	mustAttach(t, s, "u2", victim)
	device, p := Device("u2"), mustDesire(t, someSettings)
	look := func() string {
		return neighborEntries(host, victim) + host.run("ip", "neigh", "show", "dev", DefaultName, "nud", "permanent") +
			host.run("tc", "filter", "show", "dev", device, "ingress")
	}
	want := look()
	if !strings.Contains(want, "bpf") || !strings.Contains(want, "direct-action") {
		t.Errorf("tc filter: %s", want)
	}
	mustApply(t, s.bridge, p, false)
	for _, spoil := range []string{
		"tc qdisc del dev " + device + " ingress", "tc filter del dev " + device + " ingress",
		"ip neigh del 10.62.7.3 dev rik0", "ip neigh replace 10.62.7.3 lladdr 02:72:0a:3e:07:02 dev rik0",
		"ip neigh add 10.62.7.77 lladdr 02:72:0a:3e:07:4d dev rik0", "bridge fdb del 02:72:0a:3e:07:03 dev " + device + " master",
		"ip link set rik0 down",
	} {
		host.run(strings.Fields(spoil)...)
		mustApply(t, s.bridge, p, true)
		mustApply(t, s.bridge, p, false)
		if got := look(); got != want {
			t.Errorf("after %s: %s\nwant %s", spoil, got, want)
		}
	}
	if err := s.Detach(t.Context(), "u2"); err != nil {
		t.Fatal(err)
	}
	if got := host.run("ip", "neigh", "show", "dev", DefaultName); strings.Contains(got, victimAddress.String()+" ") {
		t.Errorf("neighbors after Detach: %s", got)
	}
	if err := s.Keep(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := host.run("ip", "neigh", "show", "dev", DefaultName, "nud", "permanent"); got != "" {
		t.Errorf("neighbors after Keep: %s", got)
	}
}
