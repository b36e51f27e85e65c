package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/testkit/privileged"
)

func mustApply(t testing.TB, b *Bridge, p Plan, want bool) {
	t.Helper()
	if changed, err := b.Apply(t.Context(), p); err != nil || changed != want {
		t.Fatalf("Apply() = %v, %v, want %v", changed, err, want)
	}
}

func mustDesire(t testing.TB, s Settings) Plan {
	t.Helper()
	p, err := Desired(DefaultName, s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// seen formats the state of the bridge from the output of ip.
func (n *namespace) seen() string {
	n.Helper()
	var list []struct {
		Address, OperState string
		MTU                int
		AddrInfo           []struct {
			Family, Local string
			PrefixLen     int
		} `json:"addr_info"`
		LinkInfo struct {
			Kind string `json:"info_kind"`
			Data struct {
				McastSnooping int `json:"mcast_snooping"`
			} `json:"info_data"`
		}
	}
	if err := json.Unmarshal([]byte(n.run("ip", "-d", "-j", "addr", "show", "dev", DefaultName)), &list); err != nil || len(list) != 1 {
		n.Fatal(err, list)
	}
	l := list[0]
	text := fmt.Sprintf("%s %s mtu %d snooping %d", l.LinkInfo.Kind, l.Address, l.MTU, l.LinkInfo.Data.McastSnooping)
	for _, a := range l.AddrInfo {
		text += fmt.Sprintf(" %s %s/%d", a.Family, a.Local, a.PrefixLen)
	}
	return text
}

func TestPrivilegedBridgeIsCreatedOnce(t *testing.T) {
	privileged.Require(t)
	host, b := newBridge(t)
	p := mustDesire(t, someSettings)
	mustApply(t, b, p, true)
	mustApply(t, b, p, false)
	want := "bridge 02:72:0a:3e:07:01 mtu 1400 snooping 0 inet 10.62.7.1/24"
	if diff := cmp.Diff(want, host.seen()); diff != "" {
		t.Errorf("ip addr show (-want +got):\n%s", diff)
	}
	for _, s := range p.Sysctls {
		if got := host.sysctl(s.Path); got != s.Value {
			t.Errorf("%s = %s, want %s", s.Path, got, s.Value)
		}
	}
	if err := errors.Join(b.Remove(t.Context()), b.Remove(t.Context())); err != nil {
		t.Fatal(err)
	}
	if left := host.devices(); len(left) > 0 {
		t.Errorf("left after Remove: %v", left)
	}
	mustApply(t, b, p, true)
}

func TestPrivilegedBridgeIsRepaired(t *testing.T) {
	privileged.Require(t)
	host, b := newBridge(t)
	p := mustDesire(t, someSettings)
	mustApply(t, b, p, true)
	for _, spoil := range []string{
		"ip addr del 10.62.7.1/24 dev rik0", "ip addr add 192.0.2.1/24 dev rik0", "ip link set rik0 mtu 1300",
		"ip link set rik0 address 02:72:00:00:00:01", "ip link set rik0 down", "ip link del rik0",
	} {
		host.run(strings.Fields(spoil)...)
		mustApply(t, b, p, true)
		mustApply(t, b, p, false)
		if got, want := host.seen(), "bridge 02:72:0a:3e:07:01 mtu 1400 snooping 0 inet 10.62.7.1/24"; got != want {
			t.Errorf("after %s: %s, want %s", spoil, got, want)
		}
	}
	// The node joins another cluster: the existing bridge is changed.
	other := someSettings
	other.PodCIDR, other.MTU = netip.MustParsePrefix("10.99.3.0/26"), 0
	mustApply(t, b, mustDesire(t, other), true)
	if got, want := host.seen(), "bridge 02:72:0a:63:03:01 mtu 1400 snooping 0 inet 10.99.3.1/26"; got != want {
		t.Errorf("with another range: %s, want %s", got, want)
	}
}

func TestPrivilegedForeignDevicesAreLeftAlone(t *testing.T) {
	privileged.Require(t)
	host, b := newBridge(t)
	p := mustDesire(t, someSettings)
	for _, kind := range []string{"bridge", "veth"} {
		host.run("ip", "link", "add", DefaultName, "type", kind)
		before := host.run("ip", "addr", "show", "dev", DefaultName)
		if changed, err := b.Apply(t.Context(), p); !errors.Is(err, ErrForeign) || changed {
			t.Errorf("Apply() over a %s = %v, %v, want ErrForeign", kind, changed, err)
		}
		if err := b.Remove(t.Context()); !errors.Is(err, ErrForeign) {
			t.Errorf("Remove() of a %s = %v, want ErrForeign", kind, err)
		}
		if diff := cmp.Diff(before, host.run("ip", "addr", "show", "dev", DefaultName)); diff != "" {
			t.Errorf("a foreign %s was touched:\n%s", kind, diff)
		}
		host.run("ip", "link", "del", DefaultName)
	}
	mustApply(t, b, p, true)
	name := Device("u1")
	host.run("ip", "link", "add", name, "type", "veth", "peer", "name", "other")
	host.run("ip", "link", "set", name, "alias", "somebody's")
	in := newNamespace(t)
	wire := Wire{UID: "u1", PID: in.pid, Address: netip.MustParseAddr("10.62.7.2"), Gateway: p.Gateway.Addr()}
	if err := b.Attach(t.Context(), wire); !errors.Is(err, ErrForeign) {
		t.Errorf("Attach() over a foreign device = %v, want ErrForeign", err)
	}
	if err := b.Detach(t.Context(), "u1"); !errors.Is(err, ErrForeign) {
		t.Errorf("Detach() of a foreign device = %v, want ErrForeign", err)
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if got := host.devices(); !slices.Contains(got, name) || slices.Contains(got, DefaultName) {
		t.Errorf("devices after Remove = %v", got)
	}
}

func TestPrivilegedHostIsRead(t *testing.T) {
	privileged.Require(t)
	host, b := newBridge(t)
	host.run("ip", "link", "add", "lan", "type", "bridge")
	host.run("ip", "link", "set", "lan", "mtu", "1432", "up")
	host.run("ip", "addr", "add", "10.62.7.77/16", "dev", "lan")
	host.run("ip", "route", "add", "default", "via", "10.62.0.1")
	host.run("ip", "route", "add", "blackhole", "10.77.0.0/16")
	host.run("ip", "route", "add", "10.78.0.0/16", "via", "10.62.0.1", "proto", fmt.Sprint(RouteProtocol))
	uses, err := b.Host()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range uses {
		got = append(got, u.String())
	}
	for _, want := range []string{"the address 10.62.7.77/16 on lan", "the route to 10.62.0.0/16 on lan", "the route to 10.77.0.0/16", "the route to 10.78.0.0/16 on lan"} {
		if !slices.Contains(got, want) {
			t.Errorf("Host() = %q, want %q among it", got, want)
		}
	}
	if !slices.ContainsFunc(uses, func(u Use) bool { return u.Protocol == RouteProtocol && u.ours(DefaultName) }) {
		t.Errorf("Host() = %+v, want rik's own route to be recognized", uses)
	}
	host.run("ip", "tuntap", "add", "vpn", "mode", "tun")
	host.run("ip", "link", "set", "vpn", "up")
	host.run("ip", "route", "add", "10.79.0.0/16", "dev", "vpn")
	host.run("ip", "route", "add", "10.80.0.0/16", "dev", "lan")
	host.run("ip", "route", "add", "10.81.0.0/16", "nexthop", "via", "10.62.0.1", "nexthop", "via", "10.62.0.2")
	if uses, err = b.Host(); err != nil {
		t.Fatal(err)
	}
	for prefix, want := range map[string]bool{"10.62.0.0/16": false, "10.77.0.0/16": true, "10.78.0.0/16": true, "10.79.0.0/16": true, "10.80.0.0/16": false, "10.81.0.0/16": true} {
		if !slices.ContainsFunc(uses, func(u Use) bool { return u.Prefix.String() == prefix && u.CrossesGateway == want }) {
			t.Errorf("Host() = %+v, want the route to %s with Beyond = %v", uses, prefix, want)
		}
	}
	host.run("ip", "link", "del", "vpn")
	if mtu, err := b.LinkMTU(netip.MustParseAddr("10.62.7.77")); err != nil || mtu != 1432 {
		t.Errorf("LinkMTU() = %d, %v, want 1432", mtu, err)
	}
	if _, err := b.LinkMTU(netip.MustParseAddr("10.62.7.78")); err == nil {
		t.Error("LinkMTU() of an address of no device = nil, want an error")
	}
	s := NewSwitch(b, nil)
	if err := s.Configure(t.Context(), someSettings); !errors.Is(err, ErrOverlap) || !strings.Contains(err.Error(), "lan") {
		t.Errorf("Configure() = %v, want ErrOverlap", err)
	}
	if err := s.Ready(); !errors.Is(err, ErrOverlap) || !errors.Is(err, instance.ErrNetworkNotReady) {
		t.Errorf("Ready() = %v, want ErrOverlap and ErrNetworkNotReady", err)
	}
	if left := host.devices(); !slices.Equal(left, []string{"lan"}) {
		t.Errorf("devices = %v, want nothing made", left)
	}
	host.run("ip", "link", "del", "lan")
	if err := errors.Join(s.Configure(t.Context(), someSettings), s.Ready()); err != nil {
		t.Errorf("once the overlap is over: %v", err)
	}
}

func mustAttach(t testing.TB, s *Switch, uid string, in *namespace) instance.Attachment {
	t.Helper()
	a, err := s.Attach(t.Context(), uid, in.pid)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestPrivilegedAttachAndDetach(t *testing.T) {
	privileged.Require(t)
	host, s := newSwitch(t)
	in := newNamespace(t)
	a := mustAttach(t, s, "u1", in)
	want := instance.Attachment{
		Address: netip.MustParsePrefix("10.62.7.2/32"), Gateway: netip.MustParseAddr("10.62.7.1"),
		DNS: netip.MustParseAddr("10.62.7.1"), Domain: "rik.local",
	}
	if a != want {
		t.Errorf("Attach() = %+v, want %+v", a, want)
	}
	look := func() string {
		return in.run("ip", "-o", "addr") + in.run("ip", "route") + host.run("ip", "-o", "addr") + host.run("bridge", "-d", "link")
	}
	before := look()
	if again := mustAttach(t, s, "u1", in); again != a {
		t.Errorf("Attach() again = %+v, want %+v", again, a)
	}
	if diff := cmp.Diff(before, look()); diff != "" {
		t.Errorf("Attach() again changed something:\n%s", diff)
	}
	if got := in.run("ip", "-4", "-o", "addr", "show", "dev", "eth0"); !strings.Contains(got, "inet 10.62.7.2/32 ") {
		t.Errorf("address inside: %s", got)
	}
	if got := in.run("ip", "link", "show", "dev", "eth0"); !strings.Contains(got, "mtu 1400") || !strings.Contains(got, "02:72:0a:3e:07:02") {
		t.Errorf("device inside: %s", got)
	}
	if got := in.run("ip", "route"); strings.TrimSpace(got) != "default via 10.62.7.1 dev eth0 onlink" {
		t.Errorf("routes inside: %s", got)
	}
	if got := host.run("bridge", "-d", "link", "show", "dev", Device("u1")); !strings.Contains(got, "master rik0 state forwarding") || !strings.Contains(got, "hairpin on") {
		t.Errorf("port: %s", got)
	}
	for _, name := range []string{Device("u1"), DefaultName} {
		// A frame sent now is not lost.
		if got := host.run("ip", "link", "show", "dev", name); !strings.Contains(got, "state UP") {
			t.Errorf("not up: %s", got)
		}
	}
	if got := host.run("ip", "-6", "addr") + in.run("ip", "-6", "addr", "show", "dev", "eth0"); strings.Contains(got, "fe80") {
		t.Errorf("link-local addresses: %s", got)
	}
	for range 2 {
		if err := s.Detach(t.Context(), "u1"); err != nil {
			t.Fatal(err)
		}
		if left := append(host.devices(), in.devices()...); !slices.Equal(left, []string{DefaultName}) {
			t.Errorf("devices after Detach = %v", left)
		}
	}
	if s.pool.Free() != 253 {
		t.Errorf("free = %d, want 253", s.pool.Free())
	}
	if next := mustAttach(t, s, "u2", in); next.Address.Addr().String() != "10.62.7.3" {
		t.Errorf("the address just freed was given out again: %s", next.Address)
	}
}

// Containers have no CAP_NET_RAW, so their ping uses a socket type that the kernel allows only
// for certain groups. By default it allows no group. Here root's group is allowed.
func TestPrivilegedInstancesMayPing(t *testing.T) {
	privileged.Require(t)
	_, s := newSwitch(t)
	in := newNamespace(t)
	a := mustAttach(t, s, "u1", in)
	for _, to := range []netip.Addr{a.Gateway, a.Address.Addr()} {
		in.do(func() error { return ping(to) })
	}
}

// ping waits for an echo, in the namespace of the calling thread.
func ping(to netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err != nil {
		return fmt.Errorf("opening a socket to ping with: %w", err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	message := append([]byte{8, 0, 0, 0, 0, 0, 0, 1}, "hello"...) // RFC 792: an echo; the kernel adds the checksum
	answer := make([]byte, 64)
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.Sendto(fd, message, 0, &unix.SockaddrInet4{Addr: to.As4()}),
	)
	if err != nil {
		return err
	}
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err == nil && !strings.HasSuffix(string(answer[:n]), "hello") {
		err = fmt.Errorf("the echo is %q", answer[:n])
	}
	return err
}

func TestPrivilegedAttachElsewhere(t *testing.T) {
	privileged.Require(t)
	host, s := newSwitch(t)
	first, second := newNamespace(t), newNamespace(t)
	a := mustAttach(t, s, "u1", first)
	if b := mustAttach(t, s, "u1", second); a != b {
		t.Errorf("Attach() elsewhere = %+v, want %+v", b, a)
	}
	if left := first.devices(); len(left) > 0 {
		t.Errorf("left in the former namespace: %v", left)
	}
	// States that a riklet may leave if it is killed during Attach.
	for _, spoil := range []string{"ip addr flush dev eth0", "ip route flush dev eth0", "ip link set eth0 down"} {
		second.run(strings.Fields(spoil)...)
		mustAttach(t, s, "u1", second)
		if got := second.run("ip", "route"); strings.TrimSpace(got) != "default via 10.62.7.1 dev eth0 onlink" {
			t.Errorf("after %s: routes %s", spoil, got)
		}
	}
	for _, spoil := range []string{"down", "nomaster", "alias x", "alias "} {
		host.run(append([]string{"ip", "link", "set", Device("u1")}, strings.SplitN(spoil, " ", 2)...)...)
		_, err := s.Attach(t.Context(), "u1", second.pid)
		if foreign := spoil == "alias x"; errors.Is(err, ErrForeign) != foreign || (err != nil) != foreign {
			t.Errorf("Attach() after %q = %v", spoil, err)
		}
	}
	third := newNamespace(t)
	third.run("ip", "link", "add", "eth0", "type", "bridge")
	if _, err := s.Attach(t.Context(), "u3", third.pid); !errors.Is(err, ErrForeign) {
		t.Errorf("Attach() where there is an eth0 = %v, want ErrForeign", err)
	}
	if _, err := s.Attach(t.Context(), "u4", 1<<30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Attach() to no process = %v, want ErrNotExist", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Attach(canceled, "u5", third.pid); !errors.Is(err, context.Canceled) {
		t.Errorf("Attach() with a context that ended = %v", err)
	}
}

func TestPrivilegedBridgeIsRecreatedWithItsPorts(t *testing.T) {
	privileged.Require(t)
	host, s := newSwitch(t)
	one, two := newNamespace(t), newNamespace(t)
	mustAttach(t, s, "u1", one)
	to := mustAttach(t, s, "u2", two)
	host.run("ip", "link", "del", DefaultName)
	if err := s.Configure(t.Context(), someSettings); err != nil {
		t.Fatal(err)
	}
	if got := host.run("bridge", "link"); strings.Count(got, "master rik0") != 2 {
		t.Errorf("bridge link: %s", got)
	}
	talk(t, one, two, to.Address.Addr().String(), "", "10.62.7.2")
}

func TestPrivilegedNewAgentTakesOver(t *testing.T) {
	privileged.Require(t)
	host, s := newSwitch(t)
	first, second, third := newNamespace(t), newNamespace(t), newNamespace(t)
	a := mustAttach(t, s, "u1", first)
	mustAttach(t, s, "u2", second)
	host.run("ip", "link", "add", Device("half"), "type", "veth", "peer", "name", "half")
	host.run("ip", "link", "add", Device("theirs"), "type", "veth", "peer", "name", "theirs")
	host.run("ip", "link", "set", Device("theirs"), "alias", "rik9 u9 10.62.7.9")

	next := NewSwitch(s.bridge, nil)
	if err := next.Ready(); !errors.Is(err, instance.ErrNetworkNotReady) {
		t.Errorf("Ready() before Configure = %v", err)
	}
	if _, err := next.Attach(t.Context(), "u1", first.pid); !errors.Is(err, instance.ErrNetworkNotReady) {
		t.Errorf("Attach() before Configure = %v", err)
	}
	if err := errors.Join(next.Keep(t.Context(), []string{"u1"}), next.Configure(t.Context(), someSettings), next.Ready()); err != nil {
		t.Fatal(err)
	}
	left := host.devices()
	slices.Sort(left)
	want := []string{DefaultName, Device("u1"), Device("theirs"), "theirs"}
	slices.Sort(want)
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("devices after Keep (-want +got):\n%s", diff)
	}
	if again := mustAttach(t, next, "u1", first); again != a {
		t.Errorf("Attach() = %+v, want %+v as before", again, a)
	}
	if b := mustAttach(t, next, "u3", third); b.Address == a.Address {
		t.Errorf("%s was given out twice", b.Address)
	}
	if next.pool.Free() != 251 {
		t.Errorf("free = %d, want 251", next.pool.Free())
	}
}

func TestPrivilegedEveryAddressIsInUse(t *testing.T) {
	privileged.Require(t)
	host, b := newBridge(t)
	s := NewSwitch(b, nil)
	small := Settings{PodCIDR: netip.MustParsePrefix("10.62.7.0/29")}
	if err := s.Configure(t.Context(), small); err != nil {
		t.Fatal(err)
	}
	var spaces []*namespace
	for i := range 5 {
		spaces = append(spaces, newNamespace(t))
		mustAttach(t, s, fmt.Sprint("u", i), spaces[i])
	}
	extra := newNamespace(t)
	if err := s.Ready(); !errors.Is(err, instance.ErrNetworkNotReady) || !strings.Contains(err.Error(), "10.62.7.0/29") {
		t.Errorf("Ready() = %v", err)
	}
	if _, err := s.Attach(t.Context(), "u5", extra.pid); !errors.Is(err, instance.ErrNetworkNotReady) {
		t.Errorf("Attach() = %v, want ErrNetworkNotReady", err)
	}
	mustAttach(t, s, "u4", spaces[4]) // has one
	if err := errors.Join(s.Detach(t.Context(), "u2"), s.Ready()); err != nil {
		t.Fatal(err)
	}
	if a := mustAttach(t, s, "u5", extra); a.Address.Addr().String() != "10.62.7.4" {
		t.Errorf("Attach() = %s, want the only free one", a.Address)
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := host.devices(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// talk sends data over TCP from one namespace to another and back. dial may differ from the
// listener's address. from is the client address that the listener must see.
func talk(t testing.TB, client, server *namespace, listen, dial, from string) {
	t.Helper()
	var l net.Listener
	server.do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(listen, "8080"))
		return err
	})
	defer l.Close()
	served := make(chan error, 1)
	go func() { served <- greet(l) }()
	if dial == "" {
		dial = listen
	}
	var conn net.Conn
	client.do(func() (err error) {
		conn, err = net.DialTimeout("tcp", net.JoinHostPort(dial, "8080"), timeout)
		return err
	})
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	got, err := io.ReadAll(conn)
	if err := errors.Join(err, <-served); err != nil || string(got) != from {
		t.Errorf("%s to %s: the other end saw %q, %v, want %s", client.run("hostname", "-I"), dial, got, err, from)
	}
}

const timeout = time.Minute

// greet sends one client its own address.
func greet(l net.Listener) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	_, err = io.WriteString(conn, host)
	return errors.Join(err, conn.Close())
}

func TestPrivilegedTraffic(t *testing.T) {
	privileged.Require(t)
	host, s := newSwitch(t)
	one, two := newNamespace(t), newNamespace(t)
	mustAttach(t, s, "u1", one)
	mustAttach(t, s, "u2", two)
	host.run("iptables", "-t", "nat", "-A", "PREROUTING", "-d", "10.63.0.9", "-j", "DNAT", "--to-destination", "10.62.7.3")
	modes := []string{""}
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err == nil {
		modes = []string{"0", "1"}
	}
	for _, mode := range modes {
		t.Run("bridge-nf-call-iptables="+mode, func(t *testing.T) {
			if mode != "" {
				host.do(func() error {
					_, err := set(Sysctl{"net/bridge/bridge-nf-call-iptables", mode})
					return err
				})
			}
			talk(t, one, two, "10.62.7.3", "", "10.62.7.2")
			talk(t, host, two, "10.62.7.3", "", "10.62.7.1")
			talk(t, two, host, "10.62.7.1", "", "10.62.7.3")
			// A neighbor sees the true source of a connection to a virtual address, and its
			// replies return through the node.
			talk(t, one, two, "10.62.7.3", "10.63.0.9", "10.62.7.2")
		})
	}
	// An instance connects to its own virtual address: it must not see its own address as the
	// source.
	host.run("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "10.62.7.3", "-d", "10.62.7.3", "-j", "MASQUERADE")
	talk(t, two, two, "10.62.7.3", "10.63.0.9", "10.62.7.1")
}

// The published riklet released addresses under another key than it had allocated them, and never
// removed a device: after 64 instances no network was left. A long run uses ten thousand
// instances; otherwise the test uses a thousand, four times the range.
func TestPrivilegedFault16Fault17TenThousandLeaveNothing(t *testing.T) {
	privileged.Require(t)
	const atOnce = 50
	instances := 1_000
	if privileged.Long() {
		instances = 10_000
	}
	host, s := newSwitch(t)
	inside := make([]*namespace, atOnce)
	var group errGroup
	for i := range atOnce {
		inside[i] = newNamespace(t)
	}
	for i := range atOnce {
		group.goDo(func() error {
			for n := i; n < instances; n += atOnce {
				if err := attachAndDetach(s, fmt.Sprint("u", n), inside[i], 1); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.wait(); err != nil {
		t.Fatal(err)
	}
	left := host.devices()
	for _, in := range inside {
		left = append(left, in.devices()...)
	}
	if !slices.Equal(left, []string{DefaultName}) || s.pool.Free() != 253 {
		t.Errorf("left: %v, %d addresses free", left, s.pool.Free())
	}
	if got := strings.TrimSpace(host.run("ip", "-4", "route")); strings.Count(got, "\n") != 0 || !strings.HasPrefix(got, "10.62.7.0/24 dev rik0") {
		t.Errorf("routes: %s", got)
	}
	if got := host.run("bridge", "fdb", "show", "br", DefaultName); strings.Contains(got, "02:72:0a:3e:07:02") {
		t.Errorf("forwarding table: %s", got)
	}
	noThreadElsewhere(t)
}

// noThreadElsewhere checks that no thread of this process is in another namespace.
func noThreadElsewhere(t *testing.T) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		ns, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net")
		if err == nil && ns != own {
			t.Errorf("thread %s is in %s, not in %s", task.Name(), ns, own)
		}
	}
}

func attachAndDetach(s *Switch, uid string, in *namespace, times int) error {
	for range times {
		_, err := s.Attach(context.Background(), uid, in.pid)
		if err := errors.Join(err, s.Detach(context.Background(), uid)); err != nil {
			return err
		}
	}
	return nil
}

// errGroup runs a few goroutines and collects all their errors.
type errGroup struct {
	n    int
	errs chan error
}

func (g *errGroup) goDo(work func() error) {
	if g.errs == nil {
		g.errs = make(chan error, 100)
	}
	g.n++
	go func() { g.errs <- work() }()
}

func (g *errGroup) wait() error {
	var errs []error
	for range g.n {
		errs = append(errs, <-g.errs)
	}
	return errors.Join(errs...)
}

func BenchmarkAttach(b *testing.B) {
	privileged.Require(b)
	_, s := newSwitch(b)
	in := newNamespace(b)
	for b.Loop() {
		mustAttach(b, s, "u1", in)
		b.StopTimer()
		if err := s.Detach(b.Context(), "u1"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkAttachAndDetachManyAtOnce(b *testing.B) {
	privileged.Require(b)
	_, s := newSwitch(b)
	const atOnce = 32
	var spaces []*namespace
	for range atOnce {
		spaces = append(spaces, newNamespace(b))
	}
	b.ResetTimer()
	var group errGroup
	for i := range atOnce {
		group.goDo(func() error { return attachAndDetach(s, fmt.Sprint("u", i), spaces[i], b.N/atOnce+1) })
	}
	if err := group.wait(); err != nil {
		b.Fatal(err)
	}
}
