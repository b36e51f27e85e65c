package overlay

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"rik.dev/rik/internal/riklet/network/netmap"
)

var compare = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

var settings = netmap.Settings{
	ClusterCIDR: netip.MustParsePrefix("10.62.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.63.0.0/16"), Domain: "rik.local",
}

// peers parses nodes written as "name address range". "-" omits a field.
func peers(texts ...string) *netmap.Snapshot {
	s := &netmap.Snapshot{Settings: settings, Peers: map[string]netmap.Peer{}}
	for _, text := range texts {
		var name, address, prefix string
		_, _ = fmt.Sscan(text, &name, &address, &prefix)
		p := netmap.Peer{Name: name}
		if address != "-" {
			p.Address = netip.MustParseAddr(address)
		}
		if prefix != "-" {
			p.PodCIDR = netip.MustParsePrefix(prefix)
		}
		s.Peers[name] = p
	}
	return s
}

// TestExternalAddresses checks that a tunnel uses a node's external address, and a route on the
// same link the internal one.
func TestExternalAddresses(t *testing.T) {
	t.Parallel()
	host := Host{
		Name: "n1", Address: netip.MustParseAddr("192.0.2.1"), Link: 3, MTU: 1500,
		OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
	}
	s := peers("n1 192.0.2.1 10.62.1.0/24", "n2 192.0.2.2 10.62.2.0/24", "n3 10.9.0.3 10.62.3.0/24", "n4 192.0.2.1 10.62.4.0/24", "n5 - 10.62.5.0/24", "n6 10.9.0.6 10.62.6.0/24")
	for name, external := range map[string]string{"n1": "203.0.113.1", "n2": "203.0.113.2", "n3": "203.0.113.3", "n5": "203.0.113.5", "n6": "2001:db8::6"} {
		p := s.Peers[name]
		p.External = netip.MustParseAddr(external)
		s.Peers[name] = p
	}
	plan := Desired(s, host)
	want := []End{end("10.62.3.0/24", "203.0.113.3"), end("10.62.5.0/24", "203.0.113.5"), end("10.62.6.0/24", "10.9.0.6")}
	if diff := cmp.Diff(want, plan.Tunnel.Ends, compare); diff != "" {
		t.Errorf("tunnels (-want +got):\n%s", diff)
	}
	if len(plan.Direct) != 1 || plan.Direct[0].Via != netip.MustParseAddr("192.0.2.2") {
		t.Errorf("routes = %v, want one to n2's internal address", plan.Direct)
	}
	// With tunnels to all nodes, behind NATs that may use the same addresses.
	host.OnLink = nil
	p := s.Peers["n4"]
	p.External = netip.MustParseAddr("203.0.113.4")
	s.Peers["n4"] = p
	plan = Desired(s, host)
	var got []string
	for _, e := range plan.Tunnel.Ends {
		got = append(got, e.Outer.String())
	}
	if diff := cmp.Diff([]string{"203.0.113.2", "203.0.113.3", "203.0.113.4", "203.0.113.5", "10.9.0.6"}, got); diff != "" {
		t.Errorf("tunnels to all (-want +got):\n%s", diff)
	}
}

func end(prefix, outer string) End {
	p := netip.MustParsePrefix(prefix)
	return End{Name: fmt.Sprintf("n%d", p.Addr().As4()[2]), To: p, Inner: p.Addr(), MAC: mac(p), Outer: netip.MustParseAddr(outer)}
}

func TestDesired(t *testing.T) {
	t.Parallel()
	host := Host{
		Name: "n1", Address: netip.MustParseAddr("192.0.2.1"), Link: 3, MTU: 1500,
		OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
	}
	tunnel := func(ends ...End) *Tunnel {
		return &Tunnel{
			MAC: net.HardwareAddr{6, 'r', 10, 62, 1, 0}, Local: host.Address, Inner: netip.MustParseAddr("10.62.1.0"), MTU: 1450, Ends: ends,
		}
	}
	direct := func(prefix, via string) Route {
		return Route{To: netip.MustParsePrefix(prefix), Via: netip.MustParseAddr(via), Link: 3}
	}
	tests := map[string]struct {
		host  Host
		peers *netmap.Snapshot
		want  Plan
	}{
		"nothing known":       {host, peers(), Plan{}},
		"no range of its own": {host, peers("n1 192.0.2.1 -", "n2 192.0.2.2 10.62.2.0/24"), Plan{}},
		"no address":          {Host{Name: "n1"}, peers("n1 192.0.2.1 10.62.1.0/24", "n2 192.0.2.2 10.62.2.0/24"), Plan{}},
		"alone":               {host, peers("n1 192.0.2.1 10.62.1.0/24"), Plan{}},
		"others not there yet": {
			host, peers("n1 192.0.2.1 10.62.1.0/24", "n2 - 10.62.2.0/24", "n3 192.0.2.3 -"), Plan{},
		},
		"on the link and behind a router": {
			host, peers("n1 192.0.2.1 10.62.1.0/24", "n3 198.51.100.3 10.62.3.0/24", "n2 192.0.2.2 10.62.2.0/24"),
			Plan{Tunnel: tunnel(end("10.62.3.0/24", "198.51.100.3")), Direct: []Route{direct("10.62.2.0/24", "192.0.2.2")}},
		},
		"virtual addresses, on a machine without a network": {
			Host{Name: "n1", Address: netip.MustParseAddr("127.0.0.1"), Bridge: 7},
			&netmap.Snapshot{
				Settings: netmap.Settings{ServiceCIDR: netip.MustParsePrefix("10.63.0.0/16")},
				Peers:    map[string]netmap.Peer{"n1": {Name: "n1", PodCIDR: netip.MustParsePrefix("10.62.1.0/24")}},
			},
			Plan{Virtual: &Route{To: netip.MustParsePrefix("10.63.0.0/16"), Link: 7}},
		},
		"behind a NAT": {
			Host{Name: "n1", Address: netip.MustParseAddr("203.0.113.1")},
			peers("n1 203.0.113.1 10.62.1.0/24", "n2 203.0.113.2 10.62.2.0/24"),
			Plan{Tunnel: &Tunnel{
				MAC: net.HardwareAddr{6, 'r', 10, 62, 1, 0}, Inner: netip.MustParseAddr("10.62.1.0"), MTU: 1450,
				Ends: []End{end("10.62.2.0/24", "203.0.113.2")},
			}},
		},
		"what would cut off others": {
			host, peers(
				"n1 192.0.2.1 10.62.1.0/24", "a 192.0.2.9 10.62.0.0/16", "b 192.0.2.2 10.62.2.0/24", "c 192.0.2.3 10.62.2.128/25",
				"d 192.0.2.4 192.0.2.0/24", "e 192.0.2.1 10.62.5.0/24", "f 2001:db8::1 10.62.6.0/24", "g 192.0.2.5 10.0.0.0/8",
			),
			Plan{Tunnel: tunnel(), Direct: []Route{direct("10.62.2.0/24", "192.0.2.2")}, Refused: []string{
				"node a has the pod CIDR 10.62.0.0/16, which overlaps with the pod CIDR of another node",
				"node c has the pod CIDR 10.62.2.128/25, which overlaps with the pod CIDR of another node",
				"node d has the pod CIDR 192.0.2.0/24 outside the cluster's range, 10.62.0.0/16",
				"node e has the address 192.0.2.1 of this node",
				"node f has the address 2001:db8::1, at which other nodes cannot reach it over IPv4",
				"node g has the pod CIDR 10.0.0.0/8 outside the cluster's range, 10.62.0.0/16",
			}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, Desired(tc.peers, tc.host), compare); diff != "" {
				t.Errorf("Desired() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMTU(t *testing.T) {
	t.Parallel()
	for underlay, want := range map[int]int{0: 1450, 1500: 1450, 9000: 8950, 65536: 8950, 1400: 1350, 1280: 1280} {
		if got := MTU(Host{MTU: underlay}); got != want {
			t.Errorf("MTU() over %d = %d, want %d", underlay, got, want)
		}
	}
}

// TestEveryNodeReachesEveryOther computes the plans of all nodes and checks that packets between
// them arrive at the right node.
func TestEveryNodeReachesEveryOther(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(2, 40).Draw(t, "nodes")
		s := &netmap.Snapshot{Settings: settings, Peers: map[string]netmap.Peer{}}
		hosts := map[string]Host{}
		for i := range count {
			name := fmt.Sprint("n", i)
			subnet := rapid.IntRange(0, 3).Draw(t, "subnet")
			address := netip.MustParseAddr(fmt.Sprintf("192.168.%d.%d", subnet, i+1))
			s.Peers[name] = netmap.Peer{Name: name, Address: address, PodCIDR: netip.MustParsePrefix(fmt.Sprintf("10.62.%d.0/24", i))}
			hosts[name] = Host{Name: name, Address: address, Link: 2, OnLink: []netip.Prefix{netip.PrefixFrom(address, 24).Masked()}}
		}
		plans := map[string]Plan{}
		for name, host := range hosts {
			plans[name] = Desired(s, host)
		}
		ends := map[string]bool{}
		for name, from := range hosts {
			plan := plans[name]
			if len(plan.Refused) > 0 || len(plan.Direct)+len(plan.Tunnel.Ends) != count-1 {
				t.Fatalf("%s reaches %d directly and %d through tunnels of %d nodes; refused %v", from.Name, len(plan.Direct), len(plan.Tunnel.Ends), count, plan.Refused)
			}
			for _, r := range plan.Direct {
				if !from.OnLink[0].Contains(r.Via) {
					t.Fatalf("%s sends directly to %s, which is not on its link", from.Name, r.Via)
				}
			}
			for _, e := range plan.Tunnel.Ends {
				far := plans["n"+strings.Split(e.To.String(), ".")[2]]
				if e.Outer != far.Tunnel.Local || e.Inner != far.Tunnel.Inner || e.MAC.String() != far.Tunnel.MAC.String() {
					t.Fatalf("%s sends for %s to %+v, where the end is %+v", from.Name, e.To, e, far.Tunnel)
				}
			}
			if ends[plan.Tunnel.MAC.String()] {
				t.Fatalf("the MAC address %s is of two nodes", plan.Tunnel.MAC)
			}
			ends[plan.Tunnel.MAC.String()] = true
		}
	})
}

func TestRangesOverlapAsPrefixesDo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.Custom(func(t *rapid.T) netip.Prefix {
			a := netip.AddrFrom4([4]byte{10, rapid.Byte().Draw(t, "b") & 3, rapid.Byte().Draw(t, "c"), 0})
			return netip.PrefixFrom(a, rapid.IntRange(12, 26).Draw(t, "bits")).Masked()
		})
		r := ranges{taken: map[netip.Prefix]bool{}, above: map[netip.Prefix]bool{}}
		var all []netip.Prefix
		for _, p := range rapid.SliceOfN(draw, 1, 30).Draw(t, "ranges") {
			want := slices.ContainsFunc(all, p.Overlaps)
			if got := r.overlap(p); got != want {
				t.Fatalf("overlap(%s) = %t beside %v", p, got, all)
			}
			if !want {
				r.add(p)
				all = append(all, p)
			}
		}
	})
}
