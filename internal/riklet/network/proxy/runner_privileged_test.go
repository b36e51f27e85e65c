package proxy

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/testkit/privileged"
)

// running is a proxy in Run and its input, which a test may change meanwhile.
type running struct {
	space    *space
	changed  chan struct{}
	lock     sync.Mutex
	snapshot *netmap.Snapshot // a snapshot in it never changes
	facts    Facts
}

func (r *running) set(s *netmap.Snapshot, f Facts) {
	r.lock.Lock()
	r.snapshot, r.facts = s, f
	r.lock.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// run starts the proxy in a space. It ends with the test.
func run(t *testing.T, s *space) *running {
	t.Helper()
	r := &running{space: s, changed: make(chan struct{}, 1)}
	p, err := New(Config{
		Logger: logger(), Changed: r.changed, Interval: 200 * time.Millisecond, Coalesce: time.Millisecond,
		Netmap: func() *netmap.Snapshot { r.lock.Lock(); defer r.lock.Unlock(); return r.snapshot },
		Facts:  func() Facts { r.lock.Lock(); defer r.lock.Unlock(); return r.facts },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.do(func() error { return p.Run(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// until waits until ok accepts the rules.
func (r *running) until(t *testing.T, program, what string, ok func(rules string) bool) string {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		rules := r.space.rules(program)
		if ok(rules) {
			return rules
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not come; last seen\n%s", what, rules)
		}
	}
}

// TestPrivilegedHeal checks that Run follows changes, and restores rules that another program
// removes, all or some.
func TestPrivilegedHeal(t *testing.T) {
	variants(t, func(t *testing.T, w *world, program string) {
		before := w.nodeA.rules(program)
		r := run(t, w.nodeA)
		s := basic()
		expose(s, "web", "10.63.0.5", port(30080, 8080, tcp, onNodes))
		end(s, "web", "1", "a", "10.62.1.3", true)
		end(s, "web", "2", "b", "10.62.2.2", true)
		r.set(s, w.facts)
		whole := r.until(t, program, "the rules", func(rules string) bool {
			return strings.Contains(rules, "-j RIKLET-FORWARD") && strings.Contains(rules, "10.62.2.2:8080")
		})
		for _, damage := range []struct{ what, args string }{
			{"a table flushed", "-t nat -F"},
			{"a chain flushed", "-t nat -F RIKLET-V"},
			{"a rule deleted", "-D RIKLET-FORWARD 1"},
			{"a rule exchanged", "-R RIKLET-FORWARD 1 -j RETURN"},
			{"a jump deleted", "-t nat -D PREROUTING -j RIKLET"},
			{"a rule before ours", "-I FORWARD 1 -s 203.0.113.99/32 -j DROP"},
			{"a chain of our name", "-N RIKLET-OLD"},
		} {
			what := damage.what
			w.nodeA.run(program, strings.Fields(damage.args)...)
			switch what {
			case "a rule before ours":
				r.until(t, program, what, func(rules string) bool {
					return strings.Index(rules, "-A FORWARD -j RIKLET-FORWARD") < strings.Index(rules, "203.0.113.99")
				})
				w.nodeA.run(program, "-D", "FORWARD", "-s", "203.0.113.99/32", "-j", "DROP")
			case "a table flushed":
				// The other program must restore its own rules in the table.
				for _, rule := range []string{"-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER", "-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"} {
					w.nodeA.run(program, strings.Fields(rule)...)
				}
			}
			r.until(t, program, what, func(rules string) bool { return rules == whole })
		}
		next := basic()
		r.set(next, w.facts)
		r.until(t, program, "the service's end", func(rules string) bool { return !strings.Contains(rules, "10.62.2.2:8080") })
		// A process that does not know the node's network does not change the rules.
		w.facts = Facts{Node: "a"}
		r.set(next, w.facts)
		rules := w.nodeA.rules(program)
		w.proxy = w.newProxy(t)
		w.sync(t)
		if diff := cmp.Diff(rules, w.nodeA.rules(program)); diff != "" {
			t.Errorf("rules before and after a Sync without facts (-before +after):\n%s", diff)
		}
		w.nodeA.must(func() error { return w.proxy.Remove(t.Context()) })
		if diff := cmp.Diff(before, w.nodeA.rules(program)); diff != "" {
			t.Errorf("rules before and after (-before +after):\n%s", diff)
		}
	})
}

// TestPrivilegedOtherVariant checks that rules of an earlier process in the variant that the
// machine no longer uses are removed.
func TestPrivilegedOtherVariant(t *testing.T) {
	privileged.Require(t)
	node := newSpace(t, "node")
	w := &world{lan: &lan{nodeA: node}, snapshot: basic(), facts: input(basic()).Facts, changed: make(chan struct{}, 1)}
	node.run("iptables-legacy", "-A", "INPUT", "-s", "203.0.113.1/32", "-j", "DROP")
	w.proxy = w.newProxy(t)
	w.sync(t)
	if rules := node.rules("iptables-legacy"); !strings.Contains(rules, "RIKLET-POST") {
		t.Fatalf("the legacy variant, which has rules, was not taken:\n%s", rules)
	}
	node.run("iptables-legacy", "-D", "INPUT", "-s", "203.0.113.1/32", "-j", "DROP")
	node.run("iptables-nft", "-A", "INPUT", "-s", "203.0.113.1/32", "-j", "DROP")
	w.proxy = w.newProxy(t)
	w.sync(t)
	if rules := node.rules("iptables-legacy"); strings.Contains(rules, "RIKLET") {
		t.Errorf("still there in the legacy variant:\n%s", rules)
	}
	if rules := node.rules("iptables-nft"); !strings.Contains(rules, "RIKLET-POST") {
		t.Errorf("not there in the nf_tables variant:\n%s", rules)
	}
}

// TestPrivilegedSCTP sends the packet that opens an association and checks what arrives. The test
// kernel can route and translate SCTP, but has no sockets for it.
func TestPrivilegedSCTP(t *testing.T) {
	variants(t, func(t *testing.T, w *world, _ string) {
		expose(w.snapshot, "gateway", "10.63.0.5", port(30132, 3868, sctp, onNodes))
		end(w.snapshot, "gateway", "1", "a", "10.62.1.3", true)
		w.sync(t)
		for name, c := range map[string]struct {
			from       *space
			to, source string
		}{
			"instance to a virtual address": {w.a1, "10.63.0.5", "10.62.1.2"},
			"client to a node":              {w.client, "192.0.2.1", "192.0.2.9"},
			"the node to itself":            {w.nodeA, "192.0.2.1", "192.0.2.1"},
		} {
			source, packet := exchange(t, c.from, w.a2, c.to, 30132)
			if got := binary.BigEndian.Uint16(packet[2:]); source != c.source || got != 3868 {
				t.Errorf("%s: arrived from %s at port %d, want from %s at 3868", name, source, got, c.source)
			}
			if sum := binary.LittleEndian.Uint32(packet[8:]); sum != checksum(packet) {
				t.Errorf("%s: arrived with checksum %08x, want %08x", name, sum, checksum(packet))
			}
		}
		// The endpoint moves. The unanswered association must follow.
		delete(w.snapshot.Endpoints[key("gateway")], "1")
		end(w.snapshot, "gateway", "2", "b", "10.62.2.2", true)
		w.sync(t)
		if source, _ := exchange(t, w.client, w.b1, "192.0.2.1", 30132); source != "10.62.1.1" {
			t.Errorf("client to an endpoint on another node: arrived from %s, want 10.62.1.1", source)
		}
	})
}

// exchange sends until a packet arrives, and returns its source and content.
func exchange(t *testing.T, from, at *space, to string, port uint16) (string, []byte) {
	t.Helper()
	receiver, sender := raw(t, at), raw(t, from)
	packet := initiate(40000, port)
	address := &syscall.SockaddrInet4{Addr: netip.MustParseAddr(to).As4()}
	deadline := time.Now().Add(timeout)
	buffer := make([]byte, 1500)
	for time.Now().Before(deadline) {
		if err := syscall.Sendto(sender, packet, 0, address); err != nil {
			t.Logf("sending to %s: %v", to, err)
		}
		n, source, err := syscall.Recvfrom(receiver, buffer, 0)
		if err != nil {
			continue // the socket waits at most a second
		}
		header := int(buffer[0]&0xf) * 4
		if v4, ok := source.(*syscall.SockaddrInet4); ok && n >= header+12 {
			return netip.AddrFrom4(v4.Addr).String(), buffer[header:n]
		}
	}
	t.Fatalf("nothing arrived of what %s sent to %s", from.name, to)
	return "", nil
}

// raw opens a raw socket for SCTP.
func raw(t *testing.T, s *space) int {
	t.Helper()
	var fd int
	s.must(func() (err error) {
		fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.IPPROTO_SCTP)
		if err != nil {
			return err
		}
		return syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Sec: 1})
	})
	t.Cleanup(func() { _ = syscall.Close(fd) })
	return fd
}

// initiate returns a packet with an INIT chunk, see RFC 9260 sections 3.1 and 3.3.2.
func initiate(from, to uint16) []byte {
	p := make([]byte, 12+20)
	binary.BigEndian.PutUint16(p[0:], from)
	binary.BigEndian.PutUint16(p[2:], to)
	chunk := p[12:]
	chunk[0] = 1                                    // INIT
	binary.BigEndian.PutUint16(chunk[2:], 20)       // its length
	binary.BigEndian.PutUint32(chunk[4:], 0xfeed)   // the tag that replies must have
	binary.BigEndian.PutUint32(chunk[8:], 65536)    // window
	binary.BigEndian.PutUint16(chunk[12:], 1)       // streams out
	binary.BigEndian.PutUint16(chunk[14:], 1)       // streams in
	binary.BigEndian.PutUint32(chunk[16:], 0xabcde) // first number
	binary.LittleEndian.PutUint32(p[8:], checksum(p))
	return p
}

// checksum returns the checksum of the packet, with its own field as zero.
func checksum(packet []byte) uint32 {
	p := append([]byte(nil), packet...)
	copy(p[8:12], net.IPv4zero.To4())
	return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli))
}
