package overlay

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/testkit/netnstest"
	"rik.dev/rik/internal/testkit/privileged"
)

// node is a machine in its own namespace.
type node struct {
	*netnstest.NS
	t       *testing.T
	name    string
	address string
}

// cluster creates three nodes: n1 and n2 on one link, n3 behind a router. Instances are addresses
// of links without a peer.
func cluster(t *testing.T) (n1, n2, n3 *node, s *netmap.Snapshot) {
	router := netnstest.New(t)
	router.Run("ip", "link", "add", "lan", "type", "bridge")
	router.Up("lan")
	router.Address("lan", "192.0.2.254/24")
	make := func(name, address, gateway, port string) *node {
		n := &node{netnstest.New(t), t, name, address}
		netnstest.Cable(n.NS, "eth0", router, port)
		n.Address("eth0", address+"/24")
		n.Run("ip", "route", "add", "default", "via", gateway)
		return n
	}
	n1 = make("n1", "192.0.2.1", "192.0.2.254", "p1")
	n2 = make("n2", "192.0.2.2", "192.0.2.254", "p2")
	router.Run("ip", "link", "set", "p1", "master", "lan")
	router.Run("ip", "link", "set", "p2", "master", "lan")
	n3 = make("n3", "198.51.100.3", "198.51.100.254", "p3")
	router.Address("p3", "198.51.100.254/24")
	router.Do(func() {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	for i, n := range []*node{n1, n2, n3} {
		n.Dummy("pods", fmt.Sprintf("10.62.%d.1/24", i+1))
	}
	return n1, n2, n3, peers("n1 192.0.2.1 10.62.1.0/24", "n2 192.0.2.2 10.62.2.0/24", "n3 198.51.100.3 10.62.3.0/24")
}

// apply converges a node and checks that the second time changes nothing.
func (n *node) apply(s *netmap.Snapshot) (changes int) {
	n.t.Helper()
	n.Do(func() {
		host, err := Look(n.name, netip.MustParseAddr(n.address))
		if err != nil {
			n.t.Fatal(err)
		}
		plan := Desired(s, host)
		if changes, err = Apply(plan); err != nil {
			n.t.Fatalf("%s: %v", n.name, err)
		}
		if again, err := Apply(Desired(s, host)); again != 0 || err != nil {
			n.t.Errorf("%s: applied again, %d changes, %v", n.name, again, err)
		}
	})
	return changes
}

// reach sends from an address of one node to an address of another and back.
func reach(from *node, source string, to *node, target string) error {
	var server net.PacketConn
	var err error
	to.Do(func() { server, err = net.ListenPacket("udp4", net.JoinHostPort(target, "0")) })
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { // sockets stay where they were made
		defer close(done)
		buffer := make([]byte, 2000)
		for {
			n, client, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(buffer[:n], client)
		}
	}()
	defer func() {
		_ = server.Close()
		<-done
	}()
	var conn *net.UDPConn
	from.Do(func() {
		conn, err = net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(source)}, server.LocalAddr().(*net.UDPAddr))
	})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	// As large as fits into a tunnel: larger packets do not arrive.
	message := []byte(strings.Repeat("x", 1450-28))
	for range 40 {
		if _, err = conn.Write(message); err != nil {
			continue // an answer to the last one, such as "unreachable"
		}
		_ = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		var n int
		if n, err = conn.Read(make([]byte, 2000)); err == nil && n == len(message) {
			return nil
		}
	}
	return fmt.Errorf("from %s to %s: %w", source, target, err)
}

func (n *node) reaches(to *node, target string) {
	n.t.Helper()
	source := map[string]string{"n1": "10.62.1.1", "n2": "10.62.2.1", "n3": "10.62.3.1"}[n.name]
	if err := reach(n, source, to, target); err != nil {
		n.t.Errorf("%s: %v\n%s%s", n.name, err, n.Run("ip", "route"), n.Run("ip", "-d", "link"))
	}
}

func TestPrivilegedInstancesOfAllNodesReachEachOther(t *testing.T) {
	privileged.Require(t)
	n1, n2, n3, s := cluster(t)
	for _, n := range []*node{n1, n2, n3} {
		if n.apply(s) == 0 {
			t.Errorf("%s: nothing had to be done", n.name)
		}
	}
	for _, pair := range []struct {
		from, to *node
		target   string
	}{
		{n1, n2, "10.62.2.1"}, {n2, n1, "10.62.1.1"}, {n1, n3, "10.62.3.1"}, {n3, n2, "10.62.2.1"},
	} {
		pair.from.reaches(pair.to, pair.target)
	}
	// The node itself also reaches instances, from any of its addresses.
	if err := reach(n1, "", n3, "10.62.3.1"); err != nil {
		t.Error(err)
	}
	routes := n1.Run("ip", "route", "show", "proto", "62")
	for _, want := range []string{"10.62.2.0/24 via 192.0.2.2 dev eth0", "10.62.3.0/24 via 10.62.3.0 dev rik.1 onlink"} {
		if !strings.Contains(routes, want) {
			t.Errorf("the routes of n1 miss %q:\n%s", want, routes)
		}
	}
	if fdb := n1.Run("bridge", "fdb", "show", "dev", Device); strings.TrimSpace(fdb) != "06:72:0a:3e:03:00 dst 198.51.100.3 self permanent" &&
		strings.TrimSpace(fdb) != "06:72:0a:3e:03:00 dev rik.1 dst 198.51.100.3 self permanent" {
		t.Errorf("the forwarding table of n1 is\n%s", fdb)
	}
	link := n1.Run("ip", "-d", "link", "show", Device)
	for _, want := range []string{"vxlan id 4096 local 192.0.2.1", "dstport 8472 nolearning", "mtu 1450"} {
		if !strings.Contains(link, want) {
			t.Errorf("%s of n1 misses %q:\n%s", Device, want, link)
		}
	}
}

func TestPrivilegedFollowsChanges(t *testing.T) {
	privileged.Require(t)
	n1, _, n3, s := cluster(t)
	n1.apply(s)
	n3.apply(s)
	n1.reaches(n3, "10.62.3.1")
	// The node behind the router gets another address.
	n3.Run("ip", "address", "del", "198.51.100.3/24", "dev", "eth0")
	n3.Run("ip", "address", "add", "198.51.100.33/24", "dev", "eth0")
	n3.Run("ip", "route", "add", "default", "via", "198.51.100.254")
	n3.address = "198.51.100.33"
	s = peers("n1 192.0.2.1 10.62.1.0/24", "n2 192.0.2.2 10.62.2.0/24", "n3 198.51.100.33 10.62.3.0/24")
	n1.apply(s)
	n3.apply(s)
	n1.reaches(n3, "10.62.3.1")
	n3.reaches(n1, "10.62.1.1")
	// The node is removed. The routes to it are removed with it, and the rest stays.
	s = peers("n1 192.0.2.1 10.62.1.0/24", "n2 192.0.2.2 10.62.2.0/24")
	n1.apply(s)
	for _, look := range [][]string{{"ip", "route"}, {"bridge", "fdb", "show", "dev", Device}, {"ip", "neigh", "show", "nud", "permanent"}} {
		if out := n1.Run(look[0], look[1:]...); strings.Contains(out, "10.62.3.") || strings.Contains(out, "198.51.100.33") {
			t.Errorf("%s still shows the node that is gone:\n%s", strings.Join(look, " "), out)
		}
	}
	if routes := n1.Run("ip", "route", "show", "proto", "62"); strings.TrimSpace(routes) != "10.62.2.0/24 via 192.0.2.2 dev eth0" {
		t.Errorf("routes are\n%s", routes)
	}
}

func TestPrivilegedRestoresWhatOthersRemoved(t *testing.T) {
	privileged.Require(t)
	n1, _, n3, s := cluster(t)
	n1.apply(s)
	n3.apply(s)
	for _, damage := range [][]string{
		{"ip", "link", "delete", Device}, {"ip", "link", "set", Device, "down"}, {"ip", "link", "set", Device, "mtu", "1400"},
		{"ip", "address", "flush", "dev", Device}, {"ip", "neigh", "flush", "dev", Device, "nud", "permanent"},
		{"bridge", "fdb", "del", "06:72:0a:3e:03:00", "dev", Device}, {"ip", "route", "del", "10.62.3.0/24"},
		{"ip", "link", "set", Device, "address", "02:00:00:00:00:01"}, {"ip", "route", "flush", "proto", "62"},
		{"ip", "address", "add", "10.99.0.1/24", "dev", Device},
	} {
		n1.Run(damage[0], damage[1:]...)
		if n1.apply(s) == 0 {
			t.Errorf("%s: nothing was put back", strings.Join(damage, " "))
		}
		n1.reaches(n3, "10.62.3.1")
	}
}

func TestPrivilegedRemovesAllAndNothingElse(t *testing.T) {
	privileged.Require(t)
	n1, _, _, s := cluster(t)
	look := func() string {
		return n1.Run("ip", "-o", "address") + n1.Run("ip", "route", "show", "table", "all") + n1.Run("ip", "neigh", "show", "nud", "permanent")
	}
	n1.Run("ip", "route", "add", "10.9.0.0/16", "via", "192.0.2.2")
	before := look()
	n1.apply(s)
	n1.Do(func() {
		for range 2 {
			if _, err := Apply(Plan{}); err != nil {
				t.Error(err)
			}
		}
	})
	if after := look(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func TestPrivilegedOverwritesNothing(t *testing.T) {
	privileged.Require(t)
	n1, _, n3, s := cluster(t)
	n3.apply(s)
	n1.Run("ip", "route", "add", "10.62.2.0/24", "via", "192.0.2.254")
	n1.Do(func() {
		host, err := Look("n1", netip.MustParseAddr("192.0.2.1"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Apply(Desired(s, host))
		if err == nil || !strings.Contains(err.Error(), "its own route to 10.62.2.0/24") {
			t.Errorf("Apply() = %v, want the route named", err)
		}
	})
	if routes := n1.Run("ip", "route", "show", "10.62.2.0/24"); !strings.Contains(routes, "via 192.0.2.254") {
		t.Errorf("the host's route became %s", routes)
	}
	n1.reaches(n3, "10.62.3.1") // the rest works

	n2 := netnstest.New(t)
	n2.Dummy(Device, "192.0.2.1/24")
	n2.Do(func() {
		host, err := Look("n2", netip.MustParseAddr("192.0.2.1"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Apply(Desired(s, host))
		if err == nil || !strings.Contains(err.Error(), "rik did not create the link") {
			t.Errorf("Apply() over a foreign link = %v", err)
		}
		if _, err := Apply(Plan{}); err != nil {
			t.Errorf("removing next to a foreign link: %v", err)
		}
	})
	if out := n2.Run("ip", "link", "show", Device); !strings.Contains(out, Device) {
		t.Errorf("the foreign link is gone:\n%s", out)
	}
}

func TestPrivilegedLook(t *testing.T) {
	privileged.Require(t)
	n := netnstest.New(t)
	n.Dummy("eth0", "192.0.2.1/24")
	n.Address("eth0", "198.51.100.1/32")
	n.Run("ip", "link", "set", "eth0", "mtu", "9000")
	n.Do(func() {
		host, err := Look("n", netip.MustParseAddr("192.0.2.1"))
		if err != nil {
			t.Fatal(err)
		}
		if host.Link == 0 || host.MTU != 9000 || len(host.OnLink) != 1 || host.OnLink[0] != netip.MustParsePrefix("192.0.2.0/24") {
			t.Errorf("Look() = %+v", host)
		}
		for _, elsewhere := range []string{"203.0.113.1", "127.0.0.1"} {
			if host, err := Look("n", netip.MustParseAddr(elsewhere)); err != nil || host.Link != 0 || host.OnLink != nil {
				t.Errorf("Look() for %s = %+v, %v", elsewhere, host, err)
			}
		}
		if host, err := Look("n", netip.Addr{}); err != nil || host.Link != 0 {
			t.Errorf("Look() without an address = %+v, %v", host, err)
		}
	})
}

// TestPrivilegedThePortIsTaken checks that the error names a process that has the port of tunnels
// as the cause, and that the tunnels work once it has ended.
func TestPrivilegedThePortIsTaken(t *testing.T) {
	privileged.Require(t)
	for _, address := range []string{"0.0.0.0:8472", "192.0.2.1:8472"} {
		n1, _, n3, s := cluster(t)
		n3.apply(s)
		var taken net.PacketConn
		n1.Do(func() {
			var err error
			if taken, err = net.ListenPacket("udp4", address); err != nil {
				t.Fatal(err)
			}
			host, err := Look(n1.name, netip.MustParseAddr(n1.address))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Apply(Desired(s, host)); err == nil || !strings.Contains(err.Error(), "listens on UDP port 8472") {
				t.Errorf("with a process at %s: %v, want the cause", address, err)
			}
		})
		_ = taken.Close()
		n1.apply(s)
		n1.reaches(n3, "10.62.3.1")
	}
}
