package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/privileged"
)

const (
	tcp, udp, sctp = rikv1alpha1.ProtocolTCP, rikv1alpha1.ProtocolUDP, rikv1alpha1.ProtocolSCTP
	inside         = rikv1alpha1.PortClusterIP
	onNodes        = rikv1alpha1.PortNodePort
	outside        = rikv1alpha1.PortLoadBalancer
)

// isRefused also accepts the error that a process of the node itself gets for UDP. Its packet is
// stopped before it leaves.
func isRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EPERM)
}

// variants runs a test with each variant of iptables. Rules of another program determine the
// variant. These rules also drop forwarded packets, and must not change.
func variants(t *testing.T, test func(t *testing.T, w *world, program string)) {
	t.Helper()
	privileged.Require(t)
	for _, program := range []string{"iptables-nft", "iptables-legacy"} {
		t.Run(program, func(t *testing.T) {
			l := newLAN(t)
			for _, rule := range []string{
				"-P FORWARD DROP", "-N DOCKER-USER", "-A FORWARD -j DOCKER-USER", "-A DOCKER-USER -s 203.0.113.7/32 -j DROP",
				"-t nat -N DOCKER", "-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
				"-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
			} {
				l.nodeA.run(program, strings.Fields(rule)...)
			}
			test(t, newWorld(t, l), program)
		})
	}
}

// TestPrivilegedReach connects to two instances, one on this node and one on another, from every
// kind of client.
func TestPrivilegedReach(t *testing.T) {
	variants(t, func(t *testing.T, w *world, _ string) {
		w.a2.serve("a2", "10.62.1.3:8080")
		w.b1.serve("b1", "10.62.2.2:8080")
		expose(w.snapshot, "web", "10.63.0.5", port(30080, 8080, tcp, onNodes), port(30080, 8080, udp, onNodes))
		end(w.snapshot, "web", "uid-a2", "a", "10.62.1.3", true)
		end(w.snapshot, "web", "uid-b1", "b", "10.62.2.2", true)
		end(w.snapshot, "web", "uid-a1", "a", "10.62.1.2", false)
		w.sync(t)
		for _, network := range []string{"tcp", "udp"} {
			// From instances, and to local endpoints: the client's own address is kept.
			w.a1.want(network, "10.63.0.5:30080", "a2 10.62.1.2", "b1 10.62.1.2")
			w.a1.want(network, "192.0.2.1:30080", "a2 10.62.1.2", "b1 10.62.1.2")
			w.client.want(network, "192.0.2.1:30080", "a2 192.0.2.9", "b1 10.62.1.1")
			w.nodeB.want(network, "192.0.2.1:30080", "a2 192.0.2.2", "b1 10.62.1.1")
			// From the node's own processes.
			w.nodeA.want(network, "10.63.0.5:30080", "a2 192.0.2.1", "b1 10.62.1.1")
			w.nodeA.want(network, "192.0.2.1:30080", "a2 192.0.2.1", "b1 10.62.1.1")
			w.nodeA.want(network, "127.0.0.1:30080", "a2 10.62.1.1", "b1 10.62.1.1")
			// From the instance itself.
			w.a2.want(network, "10.63.0.5:30080", "a2 10.62.1.1", "b1 10.62.1.3")
		}
	})
}

// TestPrivilegedOutward connects from an instance to a machine outside the cluster.
func TestPrivilegedOutward(t *testing.T) {
	variants(t, func(t *testing.T, w *world, _ string) {
		w.client.serve("client", "192.0.2.9:7000")
		w.sync(t)
		w.a1.want("tcp", "192.0.2.9:7000", "client 192.0.2.1")
		w.a1.want("udp", "192.0.2.9:7000", "client 192.0.2.1")
	})
}

// TestPrivilegedRefused checks that a connection to a service without a ready instance is refused
// at once, and that a port that the host uses still leads to the host.
func TestPrivilegedRefused(t *testing.T) {
	variants(t, func(t *testing.T, w *world, program string) {
		w.a2.serve("a2", "10.62.1.3:8080")
		w.nodeA.serve("host", "192.0.2.1:30081")
		w.nodeA.run(program, "-P", "INPUT", "DROP") // a firewall that drops silently
		w.nodeA.run(program, "-A", "INPUT", "-i", "lo", "-j", "ACCEPT")
		w.nodeA.run(program, "-A", "INPUT", "-p", "tcp", "--dport", "30081", "-j", "ACCEPT")
		for _, p := range []struct {
			workload, address string
			number            uint16
		}{{"web", "10.63.0.5", 30080}, {"taken", "10.63.0.6", 30081}} {
			expose(w.snapshot, p.workload, p.address, port(p.number, 8080, tcp, outside), port(p.number, 8080, udp, outside))
			end(w.snapshot, p.workload, p.workload+"-a2", "a", "10.62.1.3", p.workload == "taken")
		}
		w.facts.HostPorts = []HostPort{{tcp, 30081}, {udp, 30081}}
		w.sync(t)
		for _, network := range []string{"tcp", "udp"} {
			for _, from := range []*space{w.client, w.a1} {
				from.refused(network, "192.0.2.1:30080")
			}
			for _, from := range []*space{w.a1, w.nodeA} {
				from.refused(network, "10.63.0.5:30080")
				from.refused(network, "10.63.77.77:1") // no service has it
			}
		}
		w.client.want("tcp", "192.0.2.1:30081", "host 192.0.2.9")
		w.a1.want("tcp", "10.63.0.6:30081", "a2 10.62.1.2")
		end(w.snapshot, "web", "web-a2", "a", "10.62.1.3", true)
		w.sync(t)
		w.client.want("tcp", "192.0.2.1:30080", "a2 192.0.2.9")
		w.client.want("udp", "192.0.2.1:30080", "a2 192.0.2.9")
	})
}

// TestPrivilegedHostNetwork tests endpoints that share their node's address.
func TestPrivilegedHostNetwork(t *testing.T) {
	variants(t, func(t *testing.T, w *world, _ string) {
		w.nodeB.serve("b", "192.0.2.2:9000")
		w.nodeA.serve("a", "192.0.2.1:9000")
		ports := []struct {
			workload, address string
			number            uint16
		}{{"away", "10.63.0.7", 30090}, {"here", "10.63.0.8", 30091}, {"same", "10.63.0.9", 9000}}
		for _, p := range ports {
			expose(w.snapshot, p.workload, p.address, port(p.number, 9000, tcp, onNodes), port(p.number, 9000, udp, onNodes))
		}
		end(w.snapshot, "away", "1", "b", "192.0.2.2", true)
		end(w.snapshot, "here", "2", "a", "192.0.2.1", true)
		end(w.snapshot, "same", "3", "a", "192.0.2.1", false)
		end(w.snapshot, "same", "4", "b", "192.0.2.2", true)
		w.sync(t)
		for _, network := range []string{"tcp", "udp"} {
			for _, at := range []string{"10.63.0.7:30090", "192.0.2.1:30090"} {
				w.a1.want(network, at, "b 192.0.2.1")
				w.nodeA.want(network, at, "b 192.0.2.1")
			}
			w.nodeA.want(network, "127.0.0.1:30090", "b 192.0.2.1")
			w.client.want(network, "192.0.2.1:30090", "b 192.0.2.1")
			w.a1.want(network, "10.63.0.8:30091", "a 10.62.1.2")
			w.client.want(network, "192.0.2.1:30091", "a 192.0.2.9")
			w.nodeA.want(network, "192.0.2.1:30091", "a 192.0.2.1")
			// The probes of the instance on this node use its own port, so no other endpoint may
			// answer there.
			w.client.want(network, "192.0.2.1:9000", "a 192.0.2.9")
			w.a1.want(network, "10.63.0.9:9000", "b 192.0.2.1")
		}
	})
}

// TestPrivilegedFlows checks a client that sends from one port for a long time. It stays with an
// endpoint that is being deleted for the drain period. It leaves an endpoint that is not ready or
// no longer exists.
func TestPrivilegedFlows(t *testing.T) {
	variants(t, func(t *testing.T, w *world, _ string) {
		w.a2.serve("a2", "10.62.1.3:8080")
		w.b1.serve("b1", "10.62.2.2:8080")
		expose(w.snapshot, "dns", "10.63.0.5", port(30080, 8080, udp, onNodes))
		end(w.snapshot, "dns", "1", "a", "10.62.1.3", true)
		w.sync(t)
		open := func(from *space, at string) net.Conn {
			var conn net.Conn
			from.must(func() (err error) {
				conn, err = net.Dial("udp", at)
				return err
			})
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		instance, client := open(w.a1, "10.63.0.5:30080"), open(w.client, "192.0.2.1:30080")
		both := func(what, server string) {
			t.Helper()
			for who, conn := range map[string]net.Conn{"instance": instance, "client": client} {
				if got := answer(t, conn); !strings.HasPrefix(got, server+" ") {
					t.Errorf("%s: the %s got %q, want an answer of %s", what, who, got, server)
				}
			}
		}
		both("at first", "a2")
		end(w.snapshot, "dns", "1", "a", "10.62.1.3", false)
		drain := w.snapshot.Endpoints[key("dns")]["1"]
		drain.Draining = true
		w.snapshot.Endpoints[key("dns")]["1"] = drain
		end(w.snapshot, "dns", "2", "b", "10.62.2.2", true)
		w.sync(t)
		both("being deleted", "a2")
		w.proxy.drains["1"] = time.Now().Add(-DefaultDrainPeriod)
		w.sync(t)
		both("after its drain period", "b1")
		end(w.snapshot, "dns", "1", "a", "10.62.1.3", true)
		end(w.snapshot, "dns", "2", "b", "10.62.2.2", false)
		w.sync(t)
		both("not ready any more", "a2")
		end(w.snapshot, "dns", "2", "b", "10.62.2.2", true)
		delete(w.snapshot.Endpoints[key("dns")], "1")
		w.sync(t)
		both("gone", "b1")
		// A restarted proxy handles the changes that it missed.
		end(w.snapshot, "dns", "3", "a", "10.62.1.3", true)
		delete(w.snapshot.Endpoints[key("dns")], "2")
		w.proxy = w.newProxy(t)
		w.sync(t)
		both("removed while no proxy ran", "a2")
	})
}

// answer repeats the request until an answer arrives, because UDP may lose packets.
func answer(t *testing.T, conn net.Conn) string {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		got, err := readAnswer(conn)
		if err == nil {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("no answer over %s: %v", conn.RemoteAddr(), err)
		}
	}
}

// TestPrivilegedLoopback checks that packets of a neighbor to 127.0.0.1 do not reach local
// listeners.
func TestPrivilegedLoopback(t *testing.T) {
	variants(t, func(t *testing.T, w *world, program string) {
		w.nodeA.serve("secret", "127.0.0.1:7777")
		w.sync(t)
		w.nodeA.want("tcp", "127.0.0.1:7777", "secret 127.0.0.1")
		w.client.sysctl("ipv4/conf/all/route_localnet", "1")
		w.client.run("ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
		w.client.run("ip", "route", "add", "127.0.0.1/32", "via", "192.0.2.1")
		before := w.nodeA.drops(program)
		deadline := time.Now().Add(timeout)
		for w.nodeA.drops(program) == before {
			var conn net.Conn
			err := w.client.do(func() (err error) {
				dialer := net.Dialer{Timeout: 2 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 9)}}
				conn, err = dialer.Dial("tcp4", "127.0.0.1:7777")
				return err
			})
			if err == nil {
				_ = conn.Close()
				t.Fatal("the client reached the listener on loopback")
			}
			if time.Now().After(deadline) {
				t.Fatalf("the guard dropped nothing; last error %v\n%s", err, w.nodeA.run(program+"-save", "-c", "-t", "filter"))
			}
		}
	})
}

// drops returns the counters of the rules that protect the loopback range.
func (s *space) drops(program string) string {
	var all []string
	for line := range strings.Lines(s.run(program+"-save", "-c", "-t", "filter")) {
		if strings.Contains(line, "127.0.0.0/8") {
			all = append(all, line)
		}
	}
	return strings.Join(all, "")
}

// TestPrivilegedUntouched checks that the rules of other programs are byte for byte the same with
// rik's rules and after their removal.
func TestPrivilegedUntouched(t *testing.T) {
	variants(t, func(t *testing.T, w *world, program string) {
		before := w.nodeA.rules(program)
		expose(w.snapshot, "web", "10.63.0.5", port(30080, 8080, tcp, onNodes))
		end(w.snapshot, "web", "1", "a", "10.62.1.3", true)
		end(w.snapshot, "web", "2", "b", "10.62.2.2", true)
		w.sync(t)
		with := w.nodeA.rules(program)
		if !strings.Contains(with, "10.62.2.2:8080") {
			t.Fatalf("no rule leads to the endpoint:\n%s", with)
		}
		if diff := cmp.Diff(before, foreign(with)); diff != "" {
			t.Errorf("rules of others, before and with ours (-before +with):\n%s", diff)
		}
		setting := func() string {
			var all strings.Builder
			for _, link := range []string{"rik0", "eth0"} {
				w.nodeA.must(func() error {
					value, err := os.ReadFile(sysctls + "/" + link + "/route_localnet")
					all.Write(value)
					return err
				})
			}
			return strings.ReplaceAll(all.String(), "\n", "")
		}
		if got := setting(); got != "11" {
			t.Errorf("route_localnet of both links: got %q, want 11", got)
		}
		w.proxy = w.newProxy(t) // as a purge by a new process, which has no links
		w.facts = Facts{}
		for range 2 {
			w.nodeA.must(func() error { return w.proxy.Remove(t.Context()) })
			if diff := cmp.Diff(before, w.nodeA.rules(program)); diff != "" {
				t.Errorf("rules before and after ours (-before +after):\n%s", diff)
			}
			if got := setting(); got != "00" {
				t.Errorf("route_localnet of both links: got %q, want 00", got)
			}
		}
	})
}

// rules returns the rules in the kernel, without comments that contain times. Tables without a
// rule appear and disappear with the programs that read them.
func (s *space) rules(program string) string {
	s.tb.Helper()
	var kept strings.Builder
	for line := range strings.Lines(s.run(program+"-save", "-t", "filter") + s.run(program+"-save", "-t", "nat")) {
		if !strings.HasPrefix(line, "#") {
			before, _, _ := strings.Cut(line, " [") // counters
			kept.WriteString(strings.TrimSuffix(before, "\n") + "\n")
		}
	}
	return kept.String()
}

// foreign returns the rules that are not rik's.
func foreign(rules string) string {
	var kept strings.Builder
	for line := range strings.Lines(rules) {
		if !strings.HasPrefix(line, ":RIKLET") && !strings.HasPrefix(line, "-A RIKLET") && !strings.Contains(line, "-j RIKLET") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// TestPrivilegedReservedPortsStayFree checks that an unprivileged process cannot take a port
// that a service has on a node, also across a restart of the riklet. A process at a loopback
// address keeps the port there.
func TestPrivilegedReservedPortsStayFree(t *testing.T) {
	variants(t, func(t *testing.T, w *world, _ string) {
		w.a2.serve("a2", "10.62.1.3:8080")
		w.nodeA.serve("first", "127.0.0.1:30081")
		w.facts.Listeners = []Listener{{HostPort: HostPort{tcp, 30081}, Loopback: true}, {HostPort: HostPort{tcp, 30082}}}
		for address, number := range map[string]uint16{"10.63.0.5": 30080, "10.63.0.6": 30081, "10.63.0.7": 30082} {
			name := fmt.Sprint("web", number)
			expose(w.snapshot, name, address, port(number, 8080, tcp, onNodes))
			end(w.snapshot, name, name, "a", "10.62.1.3", true)
		}
		w.sync(t)
		check := func(when string) {
			t.Helper()
			w.client.want("tcp", "192.0.2.1:30080", "a2 192.0.2.9")
			w.client.want("tcp", "192.0.2.1:30081", "a2 192.0.2.9")
			w.nodeA.want("tcp", "127.0.0.1:30081", "first 127.0.0.1")
			if _, err := w.client.ask("tcp", "192.0.2.1:30082"); err == nil {
				t.Errorf("%s: the service took the port of a process that was first", when)
			}
		}
		check("at first")
		// A user's process starts to listen on the service's port.
		w.facts.Listeners = append(w.facts.Listeners, Listener{HostPort: HostPort{tcp, 30080}}, Listener{HostPort: HostPort{tcp, 30080}, Loopback: true})
		w.nodeA.serve("late", "127.0.0.1:30080")
		w.sync(t)
		check("after a user came")
		w.nodeA.want("tcp", "127.0.0.1:30080", "a2 10.62.1.1")
		w.proxy = w.newProxy(t)
		w.sync(t)
		check("after a restart")
		w.nodeA.want("tcp", "127.0.0.1:30080", "a2 10.62.1.1")
		// A process of root takes the port.
		w.facts.Listeners = append(w.facts.Listeners, Listener{HostPort: HostPort{tcp, 30080}, Privileged: true})
		w.sync(t)
		if _, err := w.client.ask("tcp", "192.0.2.1:30080"); err == nil {
			t.Error("the service kept the port from a process of root")
		}
	})
}

// TestPrivilegedUnknownClients checks a machine of the LAN that has a route to the cluster's
// ranges. It reaches neither instances nor virtual addresses nor the name server, and its tunnel
// packets are dropped. It reaches exposed ports. An allowed machine reaches everything.
func TestPrivilegedUnknownClients(t *testing.T) {
	variants(t, func(t *testing.T, w *world, program string) {
		w.nodeA.run(program, "-P", "FORWARD", "ACCEPT")
		w.a2.serve("a2", "10.62.1.3:8080")
		w.nodeA.serve("names", "10.62.1.1:4953")
		w.nodeA.serve("foreign", "0.0.0.0:53")
		w.nodeA.serve("tunnel", "192.0.2.1:8472")
		expose(w.snapshot, "web", "10.63.0.5", port(80, 8080, tcp, inside), port(30080, 8080, tcp, onNodes))
		end(w.snapshot, "web", "1", "a", "10.62.1.3", true)
		for _, to := range []string{"10.62.0.0/16", "10.63.0.0/16"} {
			w.client.run("ip", "route", "add", to, "via", "192.0.2.1")
		}
		closed := []string{"tcp 10.62.1.3:8080", "udp 10.62.1.3:8080", "tcp 10.63.0.5:80", "udp 10.62.1.1:53", "tcp 10.62.1.1:53", "udp 192.0.2.1:8472"}
		w.client.want("tcp", "10.62.1.3:8080", "a2 192.0.2.9") // the test reaches it without the rules
		w.sync(t)
		for _, to := range closed {
			network, address, _ := strings.Cut(to, " ")
			if got, err := w.client.ask(network, address); err == nil {
				t.Errorf("an unknown machine asked %s: got %q", to, got)
			}
		}
		w.client.want("tcp", "192.0.2.1:30080", "a2 192.0.2.9")
		// An instance cannot send tunnel packets, neither to its node nor through it to another
		// node.
		w.nodeB.serve("tunnel", "192.0.2.2:8472")
		for _, address := range []string{"192.0.2.1:8472", "192.0.2.2:8472"} {
			if got, err := w.a1.ask("udp", address); err == nil {
				t.Errorf("an instance asked %s: got %q", address, got)
			}
		}
		w.nodeB.want("udp", "192.0.2.1:8472", "tunnel 192.0.2.2")
		w.b1.want("tcp", "10.62.1.3:8080", "a2 10.62.2.2")
		w.a1.want("udp", "10.62.1.1:53", "names 10.62.1.2")
		w.facts.AllowFrom = []netip.Prefix{netip.MustParsePrefix("192.0.2.8/29")}
		w.sync(t)
		w.client.want("tcp", "10.62.1.3:8080", "a2 192.0.2.9")
		w.client.want("tcp", "10.63.0.5:80", "a2 192.0.2.9")
		w.client.want("tcp", "10.62.1.1:53", "names 192.0.2.9")
	})
}
