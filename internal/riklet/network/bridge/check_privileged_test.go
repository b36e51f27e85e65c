package bridge

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/netns"
	"rik.dev/rik/internal/testkit/privileged"
)

// fromCheck sends a datagram from the check port, and returns the source that its receiver sees.
func fromCheck(t *testing.T, c *CheckPort, in *namespace, to netip.Addr) netip.Addr {
	t.Helper()
	receiver := socket(t, in.file, to)
	sender := socket(t, c.Namespace(), netip.IPv4Unspecified())
	if _, err := sender.WriteToUDPAddrPort([]byte("hello"), receiver.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
		t.Fatal(err)
	}
	_ = receiver.SetReadDeadline(time.Now().Add(30 * time.Second))
	_, from, err := receiver.ReadFromUDPAddrPort(make([]byte, 16))
	if err != nil {
		t.Fatalf("nothing from the check port arrived at %s: %v", to, err)
	}
	return from.Addr()
}

func socket(t *testing.T, namespace *os.File, address netip.Addr) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	err := netns.Within(namespace, func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestPrivilegedCheckPort checks that packets of the check port pass like those of an instance,
// that the port is no instance, and that nothing of it stays.
func TestPrivilegedCheckPort(t *testing.T) {
	privileged.Require(t)
	host, s := newSwitch(t)
	c := NewCheckPort(s.bridge)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	in := newNamespace(t)
	to := mustAttach(t, s, "u1", in).Address.Addr()
	want := netip.MustParseAddr("10.62.7.255")
	free := s.pool.Free()
	check := func(when string) {
		t.Helper()
		for range 2 {
			if got, err := c.Connect(t.Context(), s); err != nil || got != want {
				t.Fatalf("%s: Connect() = %s, %v, want %s", when, got, err, want)
			}
			mustApply(t, s.bridge, mustDesire(t, someSettings), false)
		}
		for _, at := range []netip.Addr{to, netip.MustParseAddr("10.62.7.1")} {
			receiver := in
			if at != to {
				receiver = host
			}
			if got := fromCheck(t, c, receiver, at); got != want {
				t.Errorf("%s: a packet to %s came from %s, want %s", when, at, got, want)
			}
		}
	}
	check("at first")
	for _, spoil := range [][]string{
		{"ip", "link", "del", DefaultName}, {"ip", "link", "set", DefaultName, "down"}, {"ip", "link", "set", CheckDevice(), "nomaster"},
		{"tc", "qdisc", "del", "dev", CheckDevice(), "ingress"}, {"ip", "neigh", "del", want.String(), "dev", DefaultName},
	} {
		host.run(spoil...)
		mustApply(t, s.bridge, mustDesire(t, someSettings), true)
		check("after " + spoil[1] + " " + spoil[2])
	}
	host.run("ip", "link", "del", CheckDevice())
	check("after its device was removed")
	// It is no instance.
	if err := s.Keep(t.Context(), []string{"u1"}); err != nil {
		t.Fatal(err)
	}
	if now := s.pool.Free(); now != free {
		t.Errorf("%d addresses are free, want %d as without a check port", now, free)
	}
	check("after Keep")
	// The node gets another range.
	other := someSettings
	other.PodCIDR, other.ClusterRanges = netip.MustParsePrefix("10.99.3.0/26"), nil
	if err := s.Configure(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Connect(t.Context(), s); err != nil || got != netip.MustParseAddr("10.99.3.63") {
		t.Errorf("Connect() with another range = %s, %v", got, err)
	}
	for range 2 {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if left := host.devices(); slices.Contains(left, CheckDevice()) {
		t.Errorf("left after Close: %v", left)
	}
}

// TestPrivilegedRemoveTakesTheCheckPort checks that a check port of a riklet that still runs is
// removed with the bridge.
func TestPrivilegedRemoveTakesTheCheckPort(t *testing.T) {
	privileged.Require(t)
	host, s := newSwitch(t)
	c := NewCheckPort(s.bridge)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	if _, err := c.Connect(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := s.bridge.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := host.devices(); len(left) > 0 {
		t.Errorf("left after Remove: %v", left)
	}
}
