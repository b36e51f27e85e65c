package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/network/netmap"
)

// timeout is the limit for expected events. It is long, for busy machines.
const timeout = 60 * time.Second

// space is a network namespace of a test.
type space struct {
	tb     testing.TB
	name   string
	handle netns.NsHandle
}

// newSpace creates an empty namespace that is removed after the test.
func newSpace(tb testing.TB, name string) *space {
	tb.Helper()
	s := &space{tb: tb, name: name}
	if err := onThread(func() (err error) {
		s.handle, err = netns.New()
		return err
	}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.handle.Close() })
	s.run("ip", "link", "set", "lo", "up")
	return s
}

// onThread runs f on a separate thread, which f may move to another namespace.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer func() { _ = home.Close() }()
		err = f()
		if back := netns.Set(home); back != nil {
			done <- errors.Join(err, back) // the thread ends with the goroutine
			return
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}

// do runs f inside.
func (s *space) do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(s.handle); err != nil {
			return err
		}
		return f()
	})
}

func (s *space) must(f func() error) {
	s.tb.Helper()
	if err := s.do(f); err != nil {
		s.tb.Fatalf("in %s: %v", s.name, err)
	}
}

// run runs a program inside and returns its output.
func (s *space) run(name string, args ...string) string {
	s.tb.Helper()
	var out []byte
	if err := s.do(func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	}); err != nil {
		s.tb.Fatalf("in %s: %s %s: %v\n%s", s.name, name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (s *space) sysctl(path, value string) {
	s.tb.Helper()
	s.must(func() error { return os.WriteFile("/proc/sys/net/"+path, []byte(value), 0o644) })
}

// plug connects a new link of this space to the bridge of another.
func (s *space) plug(link string, into *space, bridge, port string, address string) {
	s.tb.Helper()
	into.must(func() error {
		master, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = port, master.Attrs().Index
		pair := &netlink.Veth{LinkAttrs: attrs, PeerName: link, PeerNamespace: netlink.NsFd(s.handle)}
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		// Allow packets back to their origin, for an instance that connects to itself.
		if err := netlink.LinkSetHairpin(pair, bridge == "rik0"); err != nil {
			return err
		}
		return netlink.LinkSetUp(pair)
	})
	s.run("ip", "addr", "add", address, "dev", link)
	s.run("ip", "link", "set", link, "up")
}

// lan is two nodes and a client on one wire, and instances on the nodes:
//
//	client 192.0.2.9 --+-- nodeA 192.0.2.1 --rik0 10.62.1.1--+-- a1 10.62.1.2
//	                   |                                     +-- a2 10.62.1.3
//	                   +-- nodeB 192.0.2.2 --rik0 10.62.2.1----- b1 10.62.2.2
//
// Only nodeA has a proxy. By default it drops forwarded packets, as Docker does.
type lan struct {
	nodeA, nodeB, client, a1, a2, b1 *space
}

func newLAN(tb testing.TB) *lan {
	tb.Helper()
	wire := newSpace(tb, "wire")
	wire.run("ip", "link", "add", "br0", "up", "type", "bridge")
	l := &lan{
		nodeA: newSpace(tb, "nodeA"), nodeB: newSpace(tb, "nodeB"), client: newSpace(tb, "client"),
		a1: newSpace(tb, "a1"), a2: newSpace(tb, "a2"), b1: newSpace(tb, "b1"),
	}
	l.nodeA.plug("eth0", wire, "br0", "a", "192.0.2.1/24")
	l.nodeB.plug("eth0", wire, "br0", "b", "192.0.2.2/24")
	l.client.plug("eth0", wire, "br0", "c", "192.0.2.9/24")
	for i, node := range []*space{l.nodeA, l.nodeB} {
		node.run("ip", "link", "add", "rik0", "up", "type", "bridge")
		node.run("ip", "addr", "add", fmt.Sprintf("10.62.%d.1/24", i+1), "dev", "rik0")
		node.run("ip", "route", "add", fmt.Sprintf("10.62.%d.0/24", 2-i), "via", fmt.Sprintf("192.0.2.%d", 2-i))
		node.run("ip", "route", "add", "default", "via", "192.0.2.9")
		node.sysctl("ipv4/ip_forward", "1")
	}
	// Replies between two instances of a node pass the bridge. They must not bypass the rules
	// that translate their addresses back.
	l.nodeA.sysctl("bridge/bridge-nf-call-iptables", "1")
	for _, x := range []struct {
		instance, node    *space
		port, address, gw string
	}{
		{l.a1, l.nodeA, "a1", "10.62.1.2/24", "10.62.1.1"},
		{l.a2, l.nodeA, "a2", "10.62.1.3/24", "10.62.1.1"},
		{l.b1, l.nodeB, "b1", "10.62.2.2/24", "10.62.2.1"},
	} {
		x.instance.plug("eth0", x.node, "rik0", x.port, x.address)
		x.instance.run("ip", "route", "add", "default", "via", x.gw)
	}
	return l
}

// serve answers on a port over TCP and UDP until the test ends, with the server's name and the
// client's address. Over UDP it also sends the request back.
func (s *space) serve(name, address string) {
	s.tb.Helper()
	var listener net.Listener
	var packets net.PacketConn
	s.must(func() (err error) {
		if listener, err = net.Listen("tcp4", address); err != nil {
			return err
		}
		packets, err = net.ListenPacket("udp4", address)
		return err
	})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(conn, "%s %s\n", name, host(conn.RemoteAddr()))
			_ = conn.Close()
		}
	})
	done.Go(func() {
		buffer := make([]byte, 100)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(fmt.Appendf(nil, "%s %s %s\n", name, host(from), buffer[:n]), from)
		}
	})
	s.tb.Cleanup(func() {
		_ = listener.Close()
		_ = packets.Close()
		done.Wait()
	})
}

func host(a net.Addr) string { return netip.MustParseAddrPort(a.String()).Addr().String() }

// ask sends a request from this space and returns the answer: "NAME CLIENT".
func (s *space) ask(network, address string) (string, error) {
	var conn net.Conn
	// Only the socket must be created inside. It stays there.
	if err := s.do(func() (err error) {
		conn, err = net.DialTimeout(network, address, 5*time.Second)
		return err
	}); err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	return readAnswer(conn)
}

// requestNumber numbers the UDP requests, so that a late answer to an earlier request is
// recognized.
var requestNumber atomic.Uint64

// readAnswer reads one answer on an open connection.
func readAnswer(conn net.Conn) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	question := ""
	if conn.RemoteAddr().Network() == "udp" {
		question = fmt.Sprintf(" %d", requestNumber.Add(1))
		if _, err := conn.Write([]byte(question[1:])); err != nil {
			return "", err
		}
	}
	buffer := make([]byte, 100)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return "", err
		}
		if answer, ok := strings.CutSuffix(strings.TrimSpace(string(buffer[:n])), question); ok {
			return answer, nil
		}
	}
}

// want repeats requests until each of the answers has arrived, and fails at once on any other
// answer.
func (s *space) want(network, address string, answers ...string) {
	s.tb.Helper()
	missing := map[string]bool{}
	for _, a := range answers {
		missing[a] = true
	}
	deadline := time.Now().Add(timeout)
	for len(missing) > 0 {
		got, err := s.ask(network, address)
		known := false
		for _, a := range answers {
			known = known || a == got
		}
		switch {
		case err == nil && !known:
			s.tb.Fatalf("%s asked %s over %s: got %q, want one of %q", s.name, address, network, got, answers)
		case err == nil:
			delete(missing, got)
		}
		if time.Now().After(deadline) {
			s.tb.Fatalf("%s asked %s over %s: no answer of %v; last %q, %v", s.name, address, network, missing, got, err)
		}
	}
}

// refused checks that a request is refused at once. It repeats the request if a UDP packet is
// lost.
func (s *space) refused(network, address string) {
	s.tb.Helper()
	deadline := time.Now().Add(timeout)
	for {
		got, err := s.ask(network, address)
		if err == nil {
			s.tb.Fatalf("%s asked %s over %s: got %q, want a refusal", s.name, address, network, got)
		}
		if isRefused(err) {
			return
		}
		if time.Now().After(deadline) {
			s.tb.Fatalf("%s asked %s over %s: got %v, want a refusal", s.name, address, network, err)
		}
	}
}

// world is the state of nodeA. Tests change it and call sync.
type world struct {
	*lan
	snapshot *netmap.Snapshot
	facts    Facts
	proxy    *Proxy
	changed  chan struct{}
}

func newWorld(t *testing.T, l *lan) *world {
	t.Helper()
	w := &world{lan: l, snapshot: basic(), changed: make(chan struct{}, 1)}
	w.facts = Facts{Node: "a", PodCIDR: netip.MustParsePrefix("10.62.1.0/24"), Links: []string{"rik0", "eth0"}, Bridge: "rik0", Ways: []string{"eth0"}, TunnelPort: 8472, NamePort: 4953}
	w.proxy = w.newProxy(t)
	return w
}

func (w *world) newProxy(t *testing.T) *Proxy {
	t.Helper()
	p, err := New(Config{
		Logger: logger(), Changed: w.changed,
		Netmap: func() *netmap.Snapshot { return w.snapshot }, Facts: func() Facts { return w.facts },
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (w *world) sync(t *testing.T) {
	t.Helper()
	if err := w.nodeA.do(func() error { return w.proxy.Sync(context.WithoutCancel(t.Context())) }); err != nil {
		t.Fatal(err)
	}
}

func logger() *slog.Logger { return slog.New(slog.DiscardHandler) }

// basic returns a netmap of two nodes without services.
func basic() *netmap.Snapshot {
	return &netmap.Snapshot{
		Settings: netmap.Settings{ClusterCIDR: netip.MustParsePrefix("10.62.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.63.0.0/16"), Domain: "rik.local"},
		Peers: map[string]netmap.Peer{
			"a": {Name: "a", Address: netip.MustParseAddr("192.0.2.1"), PodCIDR: netip.MustParsePrefix("10.62.1.0/24")},
			"b": {Name: "b", Address: netip.MustParseAddr("192.0.2.2"), PodCIDR: netip.MustParsePrefix("10.62.2.0/24")},
		},
		Services:  map[netmap.ServiceKey]netmap.Service{},
		Endpoints: map[netmap.ServiceKey]map[string]netmap.Endpoint{},
	}
}

func key(workload string) netmap.ServiceKey {
	return netmap.ServiceKey{Namespace: "default", Workload: workload}
}

// port returns a port whose target port is a different number.
func port(number, target uint16, protocol rikv1alpha1.Protocol, typ rikv1alpha1.PortType) netmap.Port {
	return netmap.Port{Port: number, TargetPort: target, Protocol: protocol, Type: typ}
}

// expose adds a service; end adds an instance to it.
func expose(s *netmap.Snapshot, workload, address string, ports ...netmap.Port) {
	s.Services[key(workload)] = netmap.Service{Key: key(workload), Addresses: []netip.Addr{netip.MustParseAddr(address)}, Ports: ports}
	s.Endpoints[key(workload)] = map[string]netmap.Endpoint{}
}

func end(s *netmap.Snapshot, workload, uid, node, address string, ready bool) {
	s.Endpoints[key(workload)][uid] = netmap.Endpoint{
		UID: uid, Service: key(workload), Name: uid, Node: node, Address: netip.MustParseAddr(address),
		Ready: ready, Ports: s.Services[key(workload)].Ports,
	}
}
