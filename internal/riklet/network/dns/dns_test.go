package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"rik.dev/rik/internal/riklet/network/netmap"
)

func address(text string) netip.Addr { return netip.MustParseAddr(text) }

// known returns the netmap from which the tests' server answers.
func known() *netmap.Snapshot {
	web := netmap.ServiceKey{Namespace: "default", Workload: "web"}
	many := netmap.Service{Key: netmap.ServiceKey{Namespace: "other", Workload: "many"}}
	for i := range 100 {
		many.Addresses = append(many.Addresses, address(fmt.Sprintf("10.63.9.%d", i)))
	}
	bare := netmap.ServiceKey{Namespace: "other", Workload: "bare"}
	return &netmap.Snapshot{
		Settings: netmap.Settings{
			ClusterCIDR: netip.MustParsePrefix("10.62.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.63.0.0/16"), Domain: "rik.local",
		},
		Services: map[netmap.ServiceKey]netmap.Service{
			web: {Key: web, Addresses: []netip.Addr{address("10.63.0.7")}, Ports: []netmap.Port{
				{Name: "http", Port: 80, TargetPort: 8080, Protocol: "TCP"}, {Name: "dns", Port: 53, TargetPort: 53, Protocol: "UDP"},
				{Name: "dns", Port: 5353, TargetPort: 53, Protocol: "TCP"}, {Port: 99, TargetPort: 99, Protocol: "SCTP"},
			}},
			many.Key: many,
			bare:     {Key: bare},
		},
		Endpoints: map[netmap.ServiceKey]map[string]netmap.Endpoint{web: {
			"u1": {UID: "u1", Service: web, Name: "web-x1", Address: address("10.62.1.2"), Ready: true},
			"u2": {UID: "u2", Service: web, Name: "web-x2", Address: address("10.62.2.2")},
			"u3": {UID: "u3", Service: web, Name: "web-x3"},
		}},
	}
}

// run runs a server on the loopback until the test ends.
func run(t *testing.T, change func(*Config)) *Server {
	t.Helper()
	snapshot := known()
	cfg := Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Snapshot: func() *netmap.Snapshot { return snapshot },
		Resolver: filepath.Join(t.TempDir(), "resolv.conf"),
	}
	if change != nil {
		change(&cfg)
	}
	s := open(t, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return s
}

// ask sends a query and fails the test without an answer.
func ask(t *testing.T, s *Server, network, name string, kind uint16) *dns.Msg {
	t.Helper()
	q := new(dns.Msg).SetQuestion(name, kind)
	return exchange(t, s, network, q)
}

func exchange(t *testing.T, s *Server, network string, q *dns.Msg) *dns.Msg {
	t.Helper()
	client := &dns.Client{Net: network, Timeout: 30 * time.Second}
	reply, _, err := client.ExchangeContext(t.Context(), q, s.Address().String())
	if err != nil {
		t.Fatalf("asking for %s by %s: %v", q.Question[0].Name, network, err)
	}
	return reply
}

// texts returns records in text form, with one space between the fields.
func texts(records []dns.RR) []string {
	var all []string
	for _, r := range records {
		if r.Header().Rrtype != dns.TypeOPT {
			all = append(all, strings.Join(strings.Fields(r.String()), " "))
		}
	}
	return all
}

func TestNamesOfTheCluster(t *testing.T) {
	t.Parallel()
	s := run(t, nil)
	tests := []struct {
		name   string
		kind   uint16
		rcode  int
		answer []string
		extra  []string
	}{
		{"web.default.rik.local.", dns.TypeA, 0, []string{"web.default.rik.local. 5 IN A 10.63.0.7"}, nil},
		{"wEb.DEFAULT.rik.Local.", dns.TypeA, 0, []string{"wEb.DEFAULT.rik.Local. 5 IN A 10.63.0.7"}, nil},
		{"web.default.rik.local.", dns.TypeANY, 0, []string{"web.default.rik.local. 5 IN A 10.63.0.7"}, nil},
		{"web.default.rik.local.", dns.TypeAAAA, 0, nil, nil},
		{"web.default.rik.local.", dns.TypeMX, 0, nil, nil},
		{"bare.other.rik.local.", dns.TypeA, 0, nil, nil},
		{"web-x1.web.default.rik.local.", dns.TypeA, 0, []string{"web-x1.web.default.rik.local. 5 IN A 10.62.1.2"}, nil},
		{"web-x2.web.default.rik.local.", dns.TypeA, 0, []string{"web-x2.web.default.rik.local. 5 IN A 10.62.2.2"}, nil},
		{"web-x3.web.default.rik.local.", dns.TypeA, 0, nil, nil},
		{"web-x9.web.default.rik.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
		{"a.web-x1.web.default.rik.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
		{"a.b.web-x1.web.default.rik.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
		{"nobody.default.rik.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
		{"web.elsewhere.rik.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
		{"elsewhere.rik.local.", dns.TypeA, dns.RcodeNameError, nil, nil},
		{"default.rik.local.", dns.TypeA, 0, nil, nil},
		{"rik.local.", dns.TypeA, 0, nil, nil},
		{"rik.local.", dns.TypeSOA, 0, []string{"rik.local. 5 IN SOA ns.dns.rik.local. hostmaster.rik.local. 1 7200 1800 86400 5"}, nil},
		{"_http._tcp.web.default.rik.local.", dns.TypeSRV, 0,
			[]string{"_http._tcp.web.default.rik.local. 5 IN SRV 0 100 80 web.default.rik.local."}, []string{"web.default.rik.local. 5 IN A 10.63.0.7"}},
		{"_dns._udp.web.default.rik.local.", dns.TypeSRV, 0,
			[]string{"_dns._udp.web.default.rik.local. 5 IN SRV 0 100 53 web.default.rik.local."}, []string{"web.default.rik.local. 5 IN A 10.63.0.7"}},
		{"_99._sctp.web.default.rik.local.", dns.TypeSRV, 0,
			[]string{"_99._sctp.web.default.rik.local. 5 IN SRV 0 100 99 web.default.rik.local."}, []string{"web.default.rik.local. 5 IN A 10.63.0.7"}},
		{"_http._tcp.web.default.rik.local.", dns.TypeA, 0, nil, nil},
		{"_tcp.web.default.rik.local.", dns.TypeSRV, 0, nil, nil},
		{"_dccp.web.default.rik.local.", dns.TypeSRV, dns.RcodeNameError, nil, nil},
		{"_http._udp.web.default.rik.local.", dns.TypeSRV, dns.RcodeNameError, nil, nil},
		{"_._sctp.web.default.rik.local.", dns.TypeSRV, dns.RcodeNameError, nil, nil},
	}
	for _, tc := range tests {
		for _, network := range []string{"udp", "tcp"} {
			reply := ask(t, s, network, tc.name, tc.kind)
			label := fmt.Sprintf("%s %s by %s", tc.name, dns.TypeToString[tc.kind], network)
			if reply.Rcode != tc.rcode || !reply.Authoritative || reply.Truncated {
				t.Errorf("%s: rcode %s, authoritative %t, truncated %t", label, dns.RcodeToString[reply.Rcode], reply.Authoritative, reply.Truncated)
			}
			if diff := cmp.Diff(tc.answer, texts(reply.Answer)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", label, diff)
			}
			// The additional section must contain no other records.
			var extra []string
			for _, text := range texts(reply.Extra) {
				if !strings.Contains(text, "OPT") {
					extra = append(extra, text)
				}
			}
			if diff := cmp.Diff(tc.extra, extra); diff != "" {
				t.Errorf("%s, besides (-want +got):\n%s", label, diff)
			}
			if len(reply.Answer) == 0 && (len(reply.Ns) != 1 || reply.Ns[0].Header().Rrtype != dns.TypeSOA) {
				t.Errorf("%s: no answer and no SOA with the duration: %v", label, reply.Ns)
			}
		}
	}
}

func TestLongAnswersUseTCP(t *testing.T) {
	t.Parallel()
	s := run(t, nil)
	const name = "many.other.rik.local."
	plain := ask(t, s, "udp", name, dns.TypeA)
	large := exchange(t, s, "udp", new(dns.Msg).SetQuestion(name, dns.TypeA).SetEdns0(4096, false))
	plain.Compress, large.Compress = true, true // as they came
	if !plain.Truncated || plain.Len() > dns.MinMsgSize || !large.Truncated || large.Len() > udpSize || len(large.Answer) <= len(plain.Answer) {
		t.Errorf("by UDP %d bytes, truncated %t; with EDNS %d, truncated %t", plain.Len(), plain.Truncated, large.Len(), large.Truncated)
	}
	if whole := ask(t, s, "tcp", name, dns.TypeA); whole.Truncated || len(whole.Answer) != 100 {
		t.Errorf("by TCP %d answers, truncated %t", len(whole.Answer), whole.Truncated)
	}
}

// world is a name server of the host. It counts the queries.
type world struct {
	asked atomic.Int32
	*dns.Server
	port string
}

func newWorld(t *testing.T, handle dns.HandlerFunc) *world {
	t.Helper()
	w := &world{}
	packets, listener := ports(t)
	_, w.port, _ = net.SplitHostPort(packets.LocalAddr().String())
	counted := dns.HandlerFunc(func(rw dns.ResponseWriter, q *dns.Msg) {
		w.asked.Add(1)
		handle(rw, q)
	})
	for _, server := range []*dns.Server{{PacketConn: packets, Handler: counted}, {Listener: listener, Handler: counted}} {
		started, done := make(chan struct{}), make(chan error, 1)
		server.NotifyStartedFunc = func() { close(started) }
		go func() { done <- server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			if err := server.Shutdown(); err != nil {
				t.Error(err)
			}
			<-done
		})
	}
	return w
}

// ports returns listeners with the same UDP and TCP port. A port that is free for UDP may be
// taken for TCP.
func ports(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 20 {
		packets, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("tcp", packets.LocalAddr().String())
		if err == nil {
			return packets, listener
		}
		_ = packets.Close()
	}
	t.Fatal("no port is free for UDP and TCP")
	return nil, nil
}

// behind returns a server that forwards to the given servers of the host.
func behind(t *testing.T, port string, hosts ...string) *Server {
	t.Helper()
	return behindWith(t, nil, port, hosts...)
}

// behindWith is behind with another configuration.
func behindWith(t *testing.T, change func(*Config), port string, hosts ...string) *Server {
	t.Helper()
	s := run(t, change)
	path := s.cfg.Resolver
	var text strings.Builder
	for _, host := range hosts {
		fmt.Fprintf(&text, "nameserver %s\n", host)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	s.upstream.mu.Lock()
	s.upstream.port = port
	s.upstream.mu.Unlock()
	return s
}

func echo(rw dns.ResponseWriter, q *dns.Msg) {
	reply := new(dns.Msg).SetReply(q)
	record, err := dns.NewRR(q.Question[0].Name + " 60 IN A 192.0.2.80")
	if err != nil {
		panic(err)
	}
	reply.Answer = []dns.RR{record}
	if rw.RemoteAddr().Network() == "udp" && strings.HasPrefix(q.Question[0].Name, "long.") {
		reply.Answer, reply.Truncated = nil, true
	}
	_ = rw.WriteMsg(reply)
}

func TestOtherNamesGoToTheHostsServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	s := behind(t, w.port, "127.0.0.1")
	for _, network := range []string{"udp", "tcp"} {
		reply := ask(t, s, network, "example.com.", dns.TypeA)
		if got := texts(reply.Answer); !slices.Equal(got, []string{"example.com. 60 IN A 192.0.2.80"}) {
			t.Errorf("by %s: %v, rcode %s", network, got, dns.RcodeToString[reply.Rcode])
		}
	}
	if reply := ask(t, s, "udp", "long.example.com.", dns.TypeA); !reply.Truncated {
		t.Error("a truncated answer is not marked as truncated")
	}
	if reply := ask(t, s, "tcp", "long.example.com.", dns.TypeA); len(reply.Answer) != 1 {
		t.Errorf("by TCP: %v", reply)
	}
	before := w.asked.Load()
	ask(t, s, "udp", "nobody.default.rik.local.", dns.TypeA)
	if w.asked.Load() != before {
		t.Error("a name of the cluster was asked of the world")
	}
}

// TestOneClientDoesNotBlockOthers checks that a client whose queries are never answered uses no
// more than its share of the waiting queries.
func TestOneClientDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(rw dns.ResponseWriter, q *dns.Msg) {
		if !strings.HasPrefix(q.Question[0].Name, "slow.") {
			echo(rw, q)
		}
	})
	s := behind(t, w.port, "127.0.0.1")
	greedy, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext(t.Context(), "udp", s.Address().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = greedy.Close() })
	queryKey, err := new(dns.Msg).SetQuestion("slow.example.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	failed := false
	for !failed { // until it has its share
		if _, err := greedy.Write(queryKey); err != nil {
			t.Fatal(err)
		}
		_ = greedy.SetReadDeadline(time.Now().Add(time.Millisecond))
		n, _ := greedy.Read(make([]byte, dns.MinMsgSize))
		failed = n > 0
	}
	if reply := ask(t, s, "udp", "example.com.", dns.TypeA); len(reply.Answer) != 1 {
		t.Errorf("another client receives %s", dns.RcodeToString[reply.Rcode])
	}
}

func TestConnectionsAreShared(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := sharing{inner, newFairQueue(8)}
	t.Cleanup(func() { _ = l.Close() })
	accepted := make(chan net.Conn, 20)
	go func() {
		defer close(accepted)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func(from byte) net.Conn {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, from)}}).DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	var greedy []net.Conn
	for range 4 {
		dial(2)
		greedy = append(greedy, <-accepted)
	}
	if _, err := dial(2).Read(make([]byte, 1)); err == nil {
		t.Error("a client has more than half of the connections")
	}
	dial(3)
	if conn := <-accepted; clientOf(conn.RemoteAddr()) != address("127.0.0.3") {
		t.Errorf("the connection of %v was accepted, want another client's", conn.RemoteAddr())
	}
	for range 2 { // once counts
		_ = greedy[0].Close()
		_ = greedy[1].Close()
	}
	dial(2)
	if conn := <-accepted; clientOf(conn.RemoteAddr()) != address("127.0.0.2") {
		t.Errorf("the connection of %v was accepted, want the first client's", conn.RemoteAddr())
	}
}

func TestSecondServerIsQueried(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	// No server listens at the first address: the kernel reports that at once.
	s := behind(t, w.port, "127.0.0.2", "127.0.0.1")
	if reply := ask(t, s, "udp", "example.com.", dns.TypeA); len(reply.Answer) != 1 {
		t.Errorf("rcode %s, %v", dns.RcodeToString[reply.Rcode], reply.Answer)
	}
}

func TestNoServerAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(rw dns.ResponseWriter, q *dns.Msg) { _ = rw.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeRefused)) })
	for name, s := range map[string]*Server{
		"down": behind(t, w.port, "127.0.0.2"), "refuses": behind(t, w.port, "127.0.0.1"), "none": run(t, nil),
	} {
		reply := ask(t, s, "udp", "example.com.", dns.TypeA)
		if reply.Rcode != dns.RcodeServerFailure || !reply.RecursionAvailable {
			t.Errorf("%s: rcode %s", name, dns.RcodeToString[reply.Rcode])
		}
		if reply := ask(t, s, "udp", "web.default.rik.local.", dns.TypeA); len(reply.Answer) != 1 {
			t.Errorf("%s: the cluster's names suffer", name)
		}
	}
}

func TestOwnAddressIsNotQueried(t *testing.T) {
	t.Parallel()
	config := &dns.ClientConfig{Servers: []string{"10.62.1.1", "::ffff:10.62.1.1", "192.0.2.53", "fe80::1%eth0", "nonsense"}, Port: "53"}
	want := []string{"192.0.2.53:53", "[fe80::1%eth0]:53"}
	if diff := cmp.Diff(want, usable(config, netip.MustParseAddrPort("10.62.1.1:53"))); diff != "" {
		t.Errorf("usable() (-want +got):\n%s", diff)
	}
	s := run(t, nil)
	looped := behind(t, fmt.Sprint(s.Address().Port()), "127.0.0.1")
	// A loop of two servers that query each other ends as well.
	if err := os.WriteFile(s.cfg.Resolver, []byte("nameserver 127.0.0.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.upstream.mu.Lock()
	s.upstream.port = fmt.Sprint(looped.Address().Port())
	s.upstream.mu.Unlock()
	if reply := ask(t, looped, "udp", "example.com.", dns.TypeA); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("rcode %s", dns.RcodeToString[reply.Rcode])
	}
}

func TestUnknownClientsGetNoExternalNames(t *testing.T) {
	t.Parallel()
	s := run(t, nil)
	for client, want := range map[string]bool{
		"127.0.0.1:1": true, "10.62.3.4:1": true, "[::ffff:10.62.3.4]:1": true, "192.0.2.1:1": false, "10.63.0.1:1": false,
	} {
		got := s.serves(known(), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(client)))
		if got != want {
			t.Errorf("serves(%s) = %t, want %t", client, got, want)
		}
	}
}

func TestInvalidMessages(t *testing.T) {
	t.Parallel()
	s := run(t, nil)
	conn, err := net.Dial("udp", s.Address().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, packet := range []string{"", "x", strings.Repeat("\xff", 12), strings.Repeat("\x00", 12), "\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01", strings.Repeat("a", 2000)} {
		if _, err := conn.Write([]byte(packet)); err != nil {
			t.Fatal(err)
		}
	}
	tcp, err := net.Dial("tcp", s.Address().String())
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	if _, err := tcp.Write([]byte("\xff\xffgarbage")); err != nil {
		t.Fatal(err)
	}
	odd := new(dns.Msg)
	odd.Id, odd.Question = 7, []dns.Question{{Name: "web.default.rik.local.", Qtype: dns.TypeA, Qclass: dns.ClassCHAOS}}
	exchange(t, s, "udp", odd)
	for _, network := range []string{"udp", "tcp"} {
		if reply := ask(t, s, network, "web.default.rik.local.", dns.TypeA); len(reply.Answer) != 1 {
			t.Errorf("by %s: %v", network, reply)
		}
	}
}

func TestServersFileIsReadAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	u := newUpstream(Config{Resolver: path}, netip.MustParseAddrPort("10.62.1.1:53"))
	write := func(text string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		u.looked = time.Time{}
	}
	now := time.Now()
	if got := u.list(); len(got) != 0 {
		t.Errorf("without a file: %v", got)
	}
	write("nameserver 192.0.2.1\nnameserver 10.62.1.1\n", now)
	if got := u.list(); !slices.Equal(got, []string{"192.0.2.1:53"}) {
		t.Errorf("list() = %v", got)
	}
	write("nameserver 192.0.2.2\n", now.Add(time.Second))
	if got := u.list(); !slices.Equal(got, []string{"192.0.2.2:53"}) {
		t.Errorf("list() after a change = %v", got)
	}
}

func TestDomainIsNotSet(t *testing.T) {
	t.Parallel()
	empty := &netmap.Snapshot{}
	s := run(t, func(c *Config) { c.Snapshot = func() *netmap.Snapshot { return empty } })
	if reply := ask(t, s, "udp", "web.default.rik.local.", dns.TypeA); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("rcode %s", dns.RcodeToString[reply.Rcode])
	}
}

func TestTakenAddressIsReported(t *testing.T) {
	t.Parallel()
	s := run(t, nil)
	_, err := listen(t.Context(), Config{Listen: s.Address(), Snapshot: known})
	if err == nil || !strings.Contains(err.Error(), s.Address().String()) {
		t.Errorf("listen() at a taken address = %v", err)
	}
}

func TestCanceledBeforeRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		s := open(t, Config{Listen: netip.MustParseAddrPort("127.0.0.1:0"), Snapshot: known})
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run() = %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("Run() does not return")
		}
		_, udp := s.udp.WriteTo(nil, s.udp.LocalAddr())
		_, tcp := s.tcp.Accept()
		if !errors.Is(udp, net.ErrClosed) || !errors.Is(tcp, net.ErrClosed) {
			t.Errorf("after Run() the sockets return %v and %v, want that they are closed", udp, tcp)
		}
	}
}

// open returns a server on a port that the kernel chooses.
func open(t *testing.T, cfg Config) *Server {
	t.Helper()
	var s *Server
	var err error
	// The port that is free for UDP may be taken for TCP.
	for range 20 {
		if s, err = listen(t.Context(), cfg); err == nil {
			return s
		}
	}
	t.Fatal(err)
	return nil
}

// listen opens the sockets. With port 0, the kernel chooses one.
func listen(ctx context.Context, cfg Config) (*Server, error) {
	var config net.ListenConfig
	udp, err := config.ListenPacket(ctx, "udp", cfg.Listen.String())
	if err != nil {
		return nil, fmt.Errorf("serving DNS at %s: %w", cfg.Listen, err)
	}
	// The same port as the kernel chose.
	tcp, err := config.Listen(ctx, "tcp", udp.LocalAddr().String())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("serving DNS at %s: %w", udp.LocalAddr(), err), udp.Close())
	}
	return New(cfg, udp, tcp), nil
}
