package proxy

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/network/iptables"
	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/testkit/golden"
)

// notOurs reports whether a port is not one of rik's own, which workloads cannot have.
func notOurs(port int) bool { return port != 8472 && port != 4953 }

func input(s *netmap.Snapshot) Input {
	return Input{Snapshot: s, Facts: Facts{
		Node: "a", PodCIDR: netip.MustParsePrefix("10.62.1.0/24"), Bridge: "rik0", Ways: []string{"rik.1", "eth0"}, TunnelPort: 8472, NamePort: 4953,
	}}
}

// TestRenderGolden shows the rules of a small cluster in a readable form.
func TestRenderGolden(t *testing.T) {
	t.Parallel()
	s := basic()
	expose(s, "alone", "10.63.0.1", port(80, 8080, tcp, inside))
	end(s, "alone", "uid-1", "a", "10.62.1.2", true)
	expose(s, "many", "10.63.0.2", port(30443, 443, tcp, onNodes), port(5000, 5000, sctp, outside))
	end(s, "many", "uid-2", "a", "10.62.1.3", true)
	end(s, "many", "uid-3", "b", "10.62.2.3", true)
	end(s, "many", "uid-4", "b", "192.0.2.2", true)
	expose(s, "nobody", "10.63.0.3", port(30053, 53, udp, onNodes))
	end(s, "nobody", "uid-5", "a", "10.62.1.4", false)
	rules := Render(input(s))
	check(t, rules)
	golden.Compare(t, "small.txt", text(rules))
}

func text(rules iptables.Ruleset) string {
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		fmt.Fprintf(&all, "*%s\n", name)
		for _, j := range rules[name].Jumps {
			fmt.Fprintf(&all, "%s -> %s\n", j.From, j.To)
		}
		for _, chain := range slices.Sorted(maps.Keys(rules[name].Chains)) {
			for _, line := range rules[name].Chains[chain] {
				fmt.Fprintf(&all, "%s: %s\n", chain, line)
			}
		}
	}
	return all.String()
}

func TestRenderNothing(t *testing.T) {
	t.Parallel()
	six := basic()
	six.Settings.ServiceCIDR = netip.MustParsePrefix("fd00::/64")
	for name, in := range map[string]Input{
		"no netmap":           {Facts: input(basic()).Facts},
		"no settings":         input(&netmap.Snapshot{}),
		"no range of its own": {Snapshot: basic(), Facts: Facts{Node: "a"}},
		"IPv6":                input(six),
	} {
		if got := Render(in); len(got) != 0 {
			t.Errorf("%s: got rules\n%s", name, text(got))
		}
	}
}

// cluster draws services, endpoints and ports of the host.
func cluster(t *rapid.T) Input {
	s := basic()
	in := input(s)
	services := rapid.IntRange(0, 150).Draw(t, "services")
	few := rapid.SampledFrom([]int{1, 3, 40, 400}).Draw(t, "endpoints at most")
	number := 0
	for i := range services {
		name := fmt.Sprintf("w%03d", i)
		var ports []netmap.Port
		for j := range rapid.IntRange(1, 3).Draw(t, "ports") {
			ports = append(ports, port(
				uint16(rapid.IntRange(1, 65535).Filter(notOurs).Draw(t, "port")), uint16(8000+j),
				rapid.SampledFrom([]rikv1alpha1.Protocol{tcp, udp, sctp}).Draw(t, "protocol"),
				rapid.SampledFrom([]rikv1alpha1.PortType{inside, onNodes, outside}).Draw(t, "type")))
		}
		address := netip.AddrFrom4([4]byte{10, 63, byte(rapid.IntRange(0, 255).Draw(t, "x")), byte(i)})
		expose(s, name, address.String(), ports...)
		for range rapid.IntRange(0, few).Draw(t, "endpoints") {
			number++
			node, at := "b", netip.AddrFrom4([4]byte{10, 62, byte(2 + number/250), byte(2 + number%250)})
			switch rapid.IntRange(0, 20).Draw(t, "where") {
			case 0:
				at = netip.MustParseAddr("192.0.2.2")
			case 1:
				node, at = "a", netip.AddrFrom4([4]byte{10, 62, 1, byte(2 + number%250)})
			}
			end(s, name, fmt.Sprintf("uid-%d", number), node, at.String(), rapid.Bool().Draw(t, "ready"))
		}
	}
	for range rapid.IntRange(0, 5).Draw(t, "host ports") {
		in.Facts.HostPorts = append(in.Facts.HostPorts, HostPort{tcp, uint16(rapid.IntRange(1, 65535).Draw(t, "host port"))})
	}
	return in
}

// TestRenderShares checks that each ready endpoint gets its share, and no other address gets
// anything.
func TestRenderShares(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := cluster(rt)
		rules := Render(in)
		check(t, rules)
		if diff := cmp.Diff(text(rules), text(Render(in))); diff != "" {
			rt.Fatalf("rendered twice (-first +second):\n%s", diff)
		}
		taken := map[HostPort]bool{}
		for _, p := range in.Facts.HostPorts {
			taken[p] = true
		}
		for _, name := range slices.SortedFunc(maps.Keys(in.Snapshot.Services), func(a, b netmap.ServiceKey) int { return strings.Compare(a.Workload, b.Workload) }) {
			s := in.Snapshot.Services[name]
			seen := map[HostPort]bool{}
			for _, p := range s.Ports {
				at := HostPort{p.Protocol, p.Port}
				if seen[at] {
					continue // the first of a service's ports has it
				}
				seen[at] = true
				want := shares(in, name, p)
				pk := packet{from: netip.MustParseAddr("192.0.2.9"), to: s.Addresses[0], protocol: strings.ToLower(string(p.Protocol)), port: int(p.Port), state: "NEW"}
				same(rt, t, rules, pk, want)
				if p.Type == inside || taken[at] || len(in.Snapshot.Endpoints[name]) == 0 {
					continue
				}
				taken[at] = true
				pk.to, pk.local = netip.MustParseAddr("192.0.2.1"), true
				same(rt, t, rules, pk, want)
				refused := simulate(t, rules[filter], chainInput, pk).probability["REJECT tcp-reset"] + simulate(t, rules[filter], chainInput, pk).probability["REJECT icmp-port-unreachable"]
				if got := refused == 1; got != (len(want) == 0) {
					rt.Fatalf("%v with %d ready: refused is %v", at, len(want), got)
				}
			}
		}
		for p := range taken {
			if slices.Contains(in.Facts.HostPorts, p) {
				same(rt, t, rules, packet{to: netip.MustParseAddr("192.0.2.1"), local: true, protocol: strings.ToLower(string(p.Protocol)), port: int(p.Port)}, nil)
			}
		}
	})
}

// shares returns the expected shares of the ready endpoints of a port.
func shares(in Input, name netmap.ServiceKey, p netmap.Port) map[string]float64 {
	first := slices.IndexFunc(in.Snapshot.Services[name].Ports, func(q netmap.Port) bool { return q.Port == p.Port && q.Protocol == p.Protocol })
	target := in.Snapshot.Services[name].Ports[first].TargetPort
	want, n := map[string]float64{}, 0.0
	for _, e := range in.Snapshot.Endpoints[name] {
		if e.Ready {
			want[dnat(e.Address.String(), target)]++
			n++
		}
	}
	for k := range want {
		want[k] /= n
	}
	return want
}

// same compares the effect of the rules with the expected shares, and checks their cost.
func same(rt *rapid.T, t *testing.T, rules iptables.Ruleset, p packet, want map[string]float64) {
	got := simulate(t, rules[nat], chainEntry, p)
	rest := 1.0
	for k, share := range want {
		if math.Abs(got.probability[k]-share) > 1e-6 {
			rt.Fatalf("%s port %d to %s: %s gets %v, want %v of %v", p.protocol, p.port, p.to, k, got.probability[k], share, got.probability)
		}
		rest -= share
	}
	for k, share := range got.probability {
		if _, ok := want[k]; !ok && k != "" && k != "marked" && share > 1e-9 {
			rt.Fatalf("%s port %d to %s: %s gets %v and should not", p.protocol, p.port, p.to, k, share)
		}
	}
	if math.Abs(got.probability[""]-rest) > 1e-6 {
		rt.Fatalf("%s port %d to %s: passed on with %v, want %v", p.protocol, p.port, p.to, got.probability[""], rest)
	}
	// 16 for each chain of a tree and 64 at its end, twice.
	if got.rules > 250 || got.depth > 12 {
		rt.Fatalf("%s port %d to %s: passes %d rules, %d chains deep", p.protocol, p.port, p.to, got.rules, got.depth)
	}
}

// large returns a netmap with n services with one endpoint each.
func large(n int) *netmap.Snapshot {
	s := basic()
	for i := range n {
		name := fmt.Sprintf("w%05d", i)
		expose(s, name, netip.AddrFrom4([4]byte{10, 63, byte(i >> 8), byte(i)}).String(), port(uint16(20000+i), 8080, tcp, onNodes))
		end(s, name, "uid-"+name, "b", netip.AddrFrom4([4]byte{10, 62, byte(2 + i/250), byte(2 + i%250)}).String(), true)
	}
	return s
}

// TestRenderGrowth checks that a connection passes few rules even with many services, and that a
// change of one service changes few chains.
func TestRenderGrowth(t *testing.T) {
	t.Parallel()
	s := large(10000)
	before := Render(input(s))
	check(t, before)
	last := packet{to: netip.MustParseAddr("10.63.39.15"), protocol: "tcp", port: 29999}
	for _, p := range []packet{last, {to: netip.MustParseAddr("192.0.2.1"), local: true, protocol: "tcp", port: 29999}} {
		got := simulate(t, before[nat], chainEntry, p)
		if got.rules > 150 || got.probability[dnat("10.62.41.251", 8080)] != 1 {
			t.Errorf("port %d of %s: passes %d rules and ends at %v", p.port, p.to, got.rules, got.probability)
		}
	}
	if rules := before.Rules(); rules > 25000 {
		t.Errorf("%d rules for 10,000 services of one endpoint with two ways in", rules)
	}
	one := s.Endpoints[key("w00777")]["uid-w00777"]
	one.Ready = false
	s.Endpoints[key("w00777")]["uid-w00777"] = one
	if changed := differ(before, Render(input(s))); changed > 6 {
		t.Errorf("one endpoint of 10,000 that is not ready any more changes %d chains", changed)
	}
}

// TestRenderManyEndpoints is the same for one service with many endpoints.
func TestRenderManyEndpoints(t *testing.T) {
	t.Parallel()
	s := basic()
	expose(s, "big", "10.63.0.1", port(30000, 8080, tcp, onNodes))
	for i := range 10000 {
		end(s, "big", fmt.Sprintf("uid-%d", i), "b", netip.AddrFrom4([4]byte{10, 62, byte(2 + i/250), byte(2 + i%250)}).String(), true)
	}
	before := Render(input(s))
	check(t, before)
	got := simulate(t, before[nat], chainEntry, packet{to: netip.MustParseAddr("10.63.0.1"), protocol: "tcp", port: 30000})
	if got.rules > 150 || len(got.probability) != 10001 {
		t.Errorf("a connection passes %d rules to get to one of %d", got.rules, len(got.probability)-1)
	}
	for to, share := range got.probability {
		if to != "" && math.Abs(share-1e-4) > 1e-9 {
			t.Fatalf("%s gets %v, want 1/10000", to, share)
		}
	}
	delete(s.Endpoints[key("big")], "uid-77")
	if changed := differ(before, Render(input(s))); changed > 6 {
		t.Errorf("one endpoint of 10,000 that is gone changes %d chains", changed)
	}
}

// differ counts the chains that a transaction between the two must contain.
func differ(a, b iptables.Ruleset) int {
	n := 0
	for _, name := range []string{nat, filter} {
		all := maps.Clone(a[name].Chains)
		maps.Copy(all, b[name].Chains)
		for chain := range all {
			x, inA := a[name].Chains[chain]
			y, inB := b[name].Chains[chain]
			if inA != inB || !slices.Equal(x, y) {
				n++
			}
		}
	}
	return n
}

// TestRenderPost checks which source address a destination sees.
func TestRenderPost(t *testing.T) {
	t.Parallel()
	s := basic()
	expose(s, "web", "10.63.0.1", port(80, 8080, tcp, inside))
	end(s, "web", "1", "a", "10.62.1.2", true)
	rules := Render(input(s))
	for name, c := range map[string]struct {
		from, to, state, link string
		marked                bool
		want                  string
	}{
		"outside to an instance here":           {"192.0.2.9", "10.62.1.2", "DNAT", "rik0", false, ""},
		"outside to one on another node":        {"192.0.2.9", "10.62.2.2", "DNAT", "eth0", false, "SNAT 10.62.1.1"},
		"the node to one on another node":       {"192.0.2.1", "10.62.2.2", "NEW", "eth0", false, "SNAT 10.62.1.1"},
		"instance to instance":                  {"10.62.1.3", "10.62.1.2", "DNAT", "rik0", false, ""},
		"instance to itself":                    {"10.62.1.2", "10.62.1.2", "DNAT", "rik0", false, "SNAT 10.62.1.1"},
		"instance to one on another node":       {"10.62.1.2", "10.62.2.2", "DNAT", "eth0", false, ""},
		"instance to the outside":               {"10.62.1.2", "198.51.100.1", "NEW", "eth0", false, "MASQUERADE"},
		"instance to many at once":              {"10.62.1.2", "239.1.1.1", "NEW", "eth0", false, ""},
		"loopback to an instance here":          {"127.0.0.1", "10.62.1.2", "DNAT", "rik0", false, "SNAT 10.62.1.1"},
		"loopback to one on another node":       {"127.0.0.1", "10.62.2.2", "DNAT", "eth0", false, "SNAT 10.62.1.1"},
		"outside to another node's own network": {"192.0.2.9", "192.0.2.2", "DNAT", "eth0", true, "MASQUERADE"},
		"other traffic":                         {"172.17.0.2", "198.51.100.1", "NEW", "eth0", false, ""},
		"the node to itself":                    {"10.62.1.1", "192.0.2.1", "NEW", "lo", false, ""},
	} {
		p := packet{from: netip.MustParseAddr(c.from), to: netip.MustParseAddr(c.to), state: c.state, in: c.link, marked: c.marked}
		if got := simulate(t, rules[nat], chainPost, p); got.probability[c.want] != 1 {
			t.Errorf("%s: got %v, want %q", name, got.probability, c.want)
		}
	}
}

// TestRenderFilter checks which packets are accepted.
func TestRenderFilter(t *testing.T) {
	t.Parallel()
	rules := Render(input(basic()))
	for name, c := range map[string]struct {
		chain, from, to, protocol string
		port                      int
		state, link               string
		marked                    bool
		want                      string
	}{
		"a new connection to an exposed port":    {chainForward, "192.0.2.9", "10.62.2.2", "tcp", 80, "DNAT", "eth0", false, "ACCEPT"},
		"a new one that goes by no port of us":   {chainForward, "192.0.2.9", "10.62.1.2", "tcp", 80, "NEW", "eth0", false, "DROP"},
		"the same by way of this node":           {chainForward, "192.0.2.9", "10.62.2.2", "tcp", 80, "NEW", "eth0", false, "DROP"},
		"a container of another program":         {chainForward, "172.17.0.2", "10.62.1.2", "tcp", 80, "NEW", "docker0", false, "DROP"},
		"an instance's address on a wrong link":  {chainForward, "10.62.2.2", "10.62.1.2", "tcp", 80, "NEW", "docker0", false, "DROP"},
		"the reply to an instance":               {chainForward, "192.0.2.9", "10.62.1.2", "tcp", 80, "ESTABLISHED", "eth0", false, "ACCEPT"},
		"through a tunnel":                       {chainForward, "10.62.2.2", "10.62.1.2", "tcp", 80, "NEW", "rik.1", false, "ACCEPT"},
		"from others through a tunnel":           {chainForward, "192.0.2.9", "10.62.1.2", "tcp", 80, "NEW", "rik.1", false, "DROP"},
		"an instance that makes a tunnel":        {chainForward, "10.62.1.2", "192.0.2.2", "udp", 8472, "NEW", "rik0", false, "DROP"},
		"an instance that makes one to the node": {chainInput, "10.62.1.2", "192.0.2.1", "udp", 8472, "NEW", "rik0", false, "DROP"},
		"the tunnel of a node":                   {chainInput, "192.0.2.2", "192.0.2.1", "udp", 8472, "NEW", "eth0", false, "ACCEPT"},
		"the tunnel of an unknown machine":       {chainInput, "192.0.2.9", "192.0.2.1", "udp", 8472, "NEW", "eth0", false, "DROP"},
		"a tunnel from this machine":             {chainInput, "127.0.0.1", "127.0.0.1", "udp", 8472, "NEW", "lo", false, "DROP"},
		"the node to its own address inside":     {chainInput, "10.62.1.1", "10.62.1.1", "tcp", 80, "NEW", "lo", false, ""},
		"another node's instance to the bridge":  {chainInput, "10.62.2.2", "10.62.1.1", "tcp", 80, "NEW", "rik.1", false, ""},
		"the reply":                              {chainForward, "10.62.2.2", "192.0.2.9", "tcp", 80, "ESTABLISHED", "eth0", false, "ACCEPT"},
		"instance to the outside":                {chainForward, "10.62.1.2", "192.0.2.9", "tcp", 80, "NEW", "rik0", false, "ACCEPT"},
		"a reply without a connection":           {chainForward, "10.62.1.2", "192.0.2.9", "tcp", 80, "INVALID", "rik0", false, "DROP"},
		"between nodes":                          {chainForward, "10.62.2.2", "10.62.1.2", "udp", 80, "NEW", "eth0", false, "ACCEPT"},
		"a virtual address that leads nowhere":   {chainForward, "10.62.1.2", "10.63.0.9", "tcp", 80, "NEW", "rik0", false, "REJECT tcp-reset"},
		"the same over UDP":                      {chainForward, "10.62.1.2", "10.63.0.9", "udp", 80, "NEW", "rik0", false, "REJECT icmp-port-unreachable"},
		"the same from the node":                 {chainOutput, "192.0.2.1", "10.63.0.9", "tcp", 80, "NEW", "", false, "REJECT tcp-reset"},
		"the node to others":                     {chainOutput, "192.0.2.1", "192.0.2.9", "tcp", 80, "NEW", "", false, ""},
		"to another node's own network":          {chainForward, "192.0.2.9", "192.0.2.2", "tcp", 80, "NEW", "eth0", true, "ACCEPT"},
		"other traffic":                          {chainForward, "172.17.0.2", "192.0.2.9", "tcp", 80, "ESTABLISHED", "eth0", false, ""},
		"a question for a name":                  {chainInput, "10.62.1.2", "10.62.1.1", "udp", 4953, "DNAT", "rik0", false, "ACCEPT"},
		"one that was not redirected":            {chainInput, "10.62.1.2", "10.62.1.1", "udp", 53, "NEW", "rik0", false, "DROP"},
		"a question from outside":                {chainInput, "192.0.2.9", "10.62.1.1", "udp", 53, "NEW", "eth0", false, "DROP"},
		"a neighbor to the loopback range":       {chainInput, "192.0.2.9", "127.0.0.1", "tcp", 80, "NEW", "eth0", false, "DROP"},
		"a reply to the loopback range":          {chainInput, "10.62.1.2", "127.0.0.1", "tcp", 80, "ESTABLISHED", "rik0", false, ""},
		"a neighbor with a loopback address":     {chainInput, "127.0.0.2", "127.0.0.1", "tcp", 80, "ESTABLISHED", "eth0", false, "DROP"},
		"the node to its own loopback addresses": {chainInput, "127.0.0.1", "127.0.0.1", "tcp", 80, "NEW", "lo", false, ""},
	} {
		p := packet{from: netip.MustParseAddr(c.from), to: netip.MustParseAddr(c.to), protocol: c.protocol, port: c.port, state: c.state, in: c.link, marked: c.marked}
		if got := simulate(t, rules[filter], c.chain, p); got.probability[c.want] != 1 {
			t.Errorf("%s: got %v, want %q", name, got.probability, c.want)
		}
	}
}

// TestRenderUnknownClients checks that only the node and its instances can use virtual addresses,
// unless the operator allows others.
func TestRenderUnknownClients(t *testing.T) {
	t.Parallel()
	s := basic()
	expose(s, "web", "10.63.0.1", port(80, 8080, tcp, inside))
	end(s, "web", "1", "a", "10.62.1.2", true)
	closed, open := input(s), input(s)
	open.Facts.AllowFrom = []netip.Prefix{netip.MustParsePrefix("192.0.2.77/28")}
	for name, c := range map[string]struct {
		from, link   string
		closed, open string
	}{
		"an instance":                    {"10.62.1.3", "rik0", "DNAT 10.62.1.2:8080", "DNAT 10.62.1.2:8080"},
		"the node":                       {"192.0.2.1", "", "DNAT 10.62.1.2:8080", "DNAT 10.62.1.2:8080"},
		"a stranger":                     {"192.0.2.9", "eth0", "", ""},
		"a container of another program": {"172.17.0.2", "docker0", "", ""},
		"an allowed machine":             {"192.0.2.66", "eth0", "", "DNAT 10.62.1.2:8080"},
	} {
		p := packet{from: netip.MustParseAddr(c.from), to: netip.MustParseAddr("10.63.0.1"), protocol: "tcp", port: 80, state: "NEW", in: c.link}
		for _, x := range []struct {
			in   Input
			want string
		}{{closed, c.closed}, {open, c.open}} {
			if got := simulate(t, Render(x.in)[nat], chainEntry, p); got.probability[x.want] != 1 {
				t.Errorf("%s, allowed %v: got %v, want %q", name, x.in.Facts.AllowFrom, got.probability, x.want)
			}
		}
	}
	p := packet{from: netip.MustParseAddr("192.0.2.66"), to: netip.MustParseAddr("10.62.1.2"), protocol: "tcp", port: 80, state: "NEW", in: "eth0"}
	for _, in := range []Input{closed, open} {
		want := 1.0 - float64(len(in.Facts.AllowFrom))
		if got := simulate(t, Render(in)[filter], chainForward, p); got.probability["DROP"] != want {
			t.Errorf("to an instance, allowed %v: got %v", in.Facts.AllowFrom, got.probability)
		}
	}
}

// TestRenderManyNodes checks that a tunnel packet passes few rules even with thousands of nodes.
func TestRenderManyNodes(t *testing.T) {
	t.Parallel()
	s := basic()
	for i := range 5000 {
		name := fmt.Sprint("n", i)
		s.Peers[name] = netmap.Peer{Name: name, Address: netip.AddrFrom4([4]byte{172, 16, byte(i / 250), byte(1 + i%250)})}
	}
	rules := Render(input(s))
	check(t, rules)
	for from, want := range map[string]string{"172.16.0.1": "ACCEPT", "172.16.19.250": "ACCEPT", "172.16.19.251": "DROP", "172.16.20.1": "DROP", "192.0.2.2": "ACCEPT"} {
		p := packet{from: netip.MustParseAddr(from), to: netip.MustParseAddr("192.0.2.1"), protocol: "udp", port: 8472, state: "NEW", in: "eth0"}
		if got := simulate(t, rules[filter], chainInput, p); got.probability[want] != 1 || got.rules > 150 {
			t.Errorf("from %s: got %v after %d rules, want %s after 150 at most", from, got.probability, got.rules, want)
		}
	}
}

// TestRenderConflicts checks that, if two services want a port, one gets it.
func TestRenderConflicts(t *testing.T) {
	t.Parallel()
	s := basic()
	for i, name := range []string{"first", "second"} {
		expose(s, name, "10.63.0.1", port(30000, 8080, tcp, onNodes))
		end(s, name, name, "b", fmt.Sprintf("10.62.2.%d", 2+i), true)
	}
	expose(s, "stranger", "192.0.2.77", port(80, 80, tcp, inside)) // no virtual address
	end(s, "stranger", "stranger", "b", "10.62.2.9", true)
	rules := Render(input(s))
	for _, p := range []packet{
		{to: netip.MustParseAddr("10.63.0.1"), protocol: "tcp", port: 30000},
		{to: netip.MustParseAddr("192.0.2.1"), local: true, protocol: "tcp", port: 30000},
	} {
		if got := simulate(t, rules[nat], chainEntry, p); got.probability[dnat("10.62.2.2", 8080)] != 1 {
			t.Errorf("to %s: got %v, want the first by name", p.to, got.probability)
		}
	}
	if strings.Contains(text(rules), "192.0.2.77") {
		t.Error("an address outside the range of virtual addresses is taken over")
	}
}

// TestRenderPortsOfNodesAreReserved checks that a node port belongs to the workload that has an
// instance that the scheduler placed with it. A workload that only requests the port gets nothing
// and takes nothing away, even if older instances of it serve that port inside the cluster.
func TestRenderPortsOfNodesAreReserved(t *testing.T) {
	t.Parallel()
	for name, theirs := range map[string][]netmap.Port{
		"without an instance":             nil,
		"with one that serves it inside":  {port(30000, 8080, tcp, inside)},
		"with one that serves another":    {port(30001, 8080, tcp, onNodes)},
		"with one of another protocol":    {port(30000, 8080, udp, onNodes)},
		"with one that serves no port so": {port(30000, 8080, udp, inside)},
	} {
		s := basic()
		expose(s, "victim", "10.63.0.2", port(30000, 8080, tcp, onNodes))
		end(s, "victim", "has it", "b", "10.62.2.2", true)
		expose(s, "asks", "10.63.0.1", port(30000, 8080, tcp, onNodes)) // the first by name
		if theirs != nil {
			end(s, "asks", "older", "b", "10.62.2.3", true)
			e := s.Endpoints[key("asks")]["older"]
			e.Ports = theirs
			s.Endpoints[key("asks")]["older"] = e
		}
		rules := Render(input(s))
		check(t, rules)
		p := packet{to: netip.MustParseAddr("192.0.2.1"), local: true, protocol: "tcp", port: 30000, state: "NEW"}
		if got := simulate(t, rules[nat], chainEntry, p); got.probability[dnat("10.62.2.2", 8080)] != 1 {
			t.Errorf("%s: connections end at %v, want the workload that has the port", name, got.probability)
		}
		if got := simulate(t, rules[filter], chainInput, p); got.probability[""] != 1 {
			t.Errorf("%s: the port is refused: %v", name, got.probability)
		}
	}
}

// TestRenderKeepsTheNodesNames checks that DNS queries of instances to the bridge's address reach
// the name server, whatever node ports a workload has.
func TestRenderKeepsTheNodesNames(t *testing.T) {
	t.Parallel()
	for name, ready := range map[string]bool{"ready": true, "not ready": false} {
		s := basic()
		expose(s, "dns", "10.63.0.1", port(53, 5353, udp, onNodes), port(53, 5353, tcp, onNodes), port(53, 5353, sctp, onNodes))
		end(s, "dns", "uid", "b", "10.62.2.2", ready)
		rules := Render(input(s))
		check(t, rules)
		for _, protocol := range []string{"udp", "tcp"} {
			at := func(to string) packet {
				return packet{from: netip.MustParseAddr("10.62.1.2"), to: netip.MustParseAddr(to), local: true, protocol: protocol, port: 53, state: "NEW", in: "rik0"}
			}
			for from, link := range map[string]string{"10.62.1.2": "rik0", "10.62.2.2": "rik.1", "192.0.2.1": "", "192.0.2.9": "eth0"} {
				p := at("10.62.1.1")
				p.from, p.in = netip.MustParseAddr(from), link
				want := dnat("10.62.1.1", 4953)
				if link == "eth0" {
					want = "" // an unknown client
				}
				if got := simulate(t, rules[nat], chainEntry, p); got.probability[want] != 1 {
					t.Errorf("%s, %s: a question for a name of %s ends at %v, want %q", name, protocol, from, got.probability, want)
				}
			}
			redirected := at("10.62.1.1")
			redirected.port, redirected.state = 4953, "DNAT"
			if got := simulate(t, rules[filter], chainInput, redirected); got.probability["ACCEPT"] != 1 {
				t.Errorf("%s, %s: a question for a name: %v, want ACCEPT", name, protocol, got.probability)
			}
			// Another program removed the redirection. A foreign server on port 53 must get no
			// query.
			if got := simulate(t, rules[filter], chainInput, at("10.62.1.1")); got.probability["DROP"] != 1 {
				t.Errorf("%s, %s: a question that is not redirected: %v, want DROP", name, protocol, got.probability)
			}
			elsewhere := simulate(t, rules[nat], chainEntry, at("192.0.2.1"))
			if want := map[bool]string{true: dnat("10.62.2.2", 5353), false: ""}[ready]; elsewhere.probability[want] != 1 {
				t.Errorf("%s, %s: the port of another address ends at %v", name, protocol, elsewhere.probability)
			}
		}
	}
}

// TestRenderRevisions checks that each endpoint is reached at the port of its own revision, and
// an endpoint without the port not at all.
func TestRenderRevisions(t *testing.T) {
	t.Parallel()
	s := basic()
	expose(s, "web", "10.63.0.1", port(80, 9090, tcp, inside))
	end(s, "web", "new", "b", "10.62.2.2", true)
	for uid, p := range map[string]netmap.Port{"old": port(80, 8080, tcp, inside), "other": port(81, 8080, tcp, inside), "udp": port(80, 8080, udp, inside)} {
		end(s, "web", uid, "b", "10.62.2.3", true)
		e := s.Endpoints[key("web")][uid]
		e.Ports = []netmap.Port{p}
		s.Endpoints[key("web")][uid] = e
	}
	got := simulate(t, Render(input(s))[nat], chainEntry, packet{to: netip.MustParseAddr("10.63.0.1"), protocol: "tcp", port: 80})
	want := map[string]float64{dnat("10.62.2.2", 9090): 0.5, dnat("10.62.2.3", 8080): 0.5, "": 0}
	if diff := cmp.Diff(want, got.probability); diff != "" {
		t.Errorf("where connections end (-want +got):\n%s", diff)
	}
}
