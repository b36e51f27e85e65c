package dns

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"rik.dev/rik/internal/riklet/network/netmap"
)

// A query that many clients send at the same time is forwarded once, and none of the clients is
// refused.
func TestIdenticalQueriesAreMerged(t *testing.T) {
	t.Parallel()
	const clients = 200
	var s *Server
	together := make(chan struct{})
	w := newWorld(t, func(rw dns.ResponseWriter, q *dns.Msg) {
		<-together
		echo(rw, q)
	})
	s = behind(t, w.port, "127.0.0.1")
	go func() { // until more wait than one client may have forwarded, or some have waited long
		defer close(together)
		for end := time.Now().Add(perQuery / 2); time.Now().Before(end); {
			s.upstream.waits.mu.Lock()
			waiting := s.upstream.waits.taken
			s.upstream.waits.mu.Unlock()
			if waiting > maxForwards/2 {
				return
			}
			select {
			case <-t.Context().Done():
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	var group sync.WaitGroup
	rcodes := make(chan int, clients)
	for range clients {
		group.Go(func() {
			var err error
			for range 10 { // the kernel may drop some of many packets
				q := new(dns.Msg).SetQuestion("eXample.com.", dns.TypeA)
				var reply *dns.Msg
				if reply, _, err = (&dns.Client{Timeout: 5 * time.Second}).ExchangeContext(t.Context(), q, s.Address().String()); err == nil {
					rcodes <- reply.Rcode
					return
				}
			}
			t.Error(err)
		})
	}
	group.Wait()
	close(rcodes)
	for rcode := range rcodes {
		if rcode != dns.RcodeSuccess {
			t.Fatalf("a client receives %s", dns.RcodeToString[rcode])
		}
	}
	// Attempts, not clients: the servers were silent for a while.
	if asked := int(w.asked.Load()); asked > minAttempts {
		t.Errorf("the server was asked %d times", asked)
	}
}

func TestAnswersAreCached(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(rw dns.ResponseWriter, q *dns.Msg) {
		if q.Question[0].Name != "none.example." {
			echo(rw, q)
			return
		}
		reply := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
		reply.Ns = []dns.RR{soa("example")}
		_ = rw.WriteMsg(reply)
	})
	s := behind(t, w.port, "127.0.0.1")
	for _, name := range []string{"example.com.", "none.example."} {
		first := ask(t, s, "udp", name, dns.TypeA)
		before := w.asked.Load()
		for _, network := range []string{"udp", "tcp"} {
			if again := ask(t, s, network, name, dns.TypeA); again.Rcode != first.Rcode || !slices.Equal(names(again.Answer), names(first.Answer)) {
				t.Errorf("%s again by %s: %v, want %v", name, network, again, first)
			}
		}
		if w.asked.Load() != before {
			t.Errorf("%s was asked again", name)
		}
	}
}

func names(records []dns.RR) (all []string) {
	for _, r := range records {
		all = append(all, r.Header().Name)
	}
	return all
}

func TestCacheDurations(t *testing.T) {
	t.Parallel()
	record := func(text string) dns.RR {
		r, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	q := new(dns.Msg).SetQuestion("a.example.", dns.TypeA)
	reply := func(rcode int, answer, authority string) *dns.Msg {
		m := new(dns.Msg).SetRcode(q, rcode)
		if answer != "" {
			m.Answer = []dns.RR{record(answer)}
		}
		if authority != "" {
			m.Ns = []dns.RR{record(authority)}
		}
		return m
	}
	for name, tc := range map[string]struct {
		reply *dns.Msg
		want  time.Duration
	}{
		"short":           {reply(0, "a.example. 7 IN A 192.0.2.1", ""), 7 * time.Second},
		"long":            {reply(0, "a.example. 86400 IN A 192.0.2.1", ""), maxAge},
		"none":            {reply(0, "a.example. 0 IN A 192.0.2.1", ""), 0},
		"no":              {reply(dns.RcodeNameError, "", "example. 100 IN SOA a. b. 1 2 3 4 9"), 9 * time.Second},
		"nothing":         {reply(0, "", "example. 8 IN SOA a. b. 1 2 3 4 9"), 8 * time.Second},
		"no, without SOA": {reply(dns.RcodeNameError, "", ""), 0},
		"server failure":  {reply(dns.RcodeServerFailure, "", "example. 100 IN SOA a. b. 1 2 3 4 9"), 0},
	} {
		if got := ageOf(tc.reply); got != tc.want {
			t.Errorf("%s: ageOf() = %s, want %s", name, got, tc.want)
		}
	}
	c, key, now := newCache(), keyOf(q, false), time.Now()
	c.put(key, reply(0, "a.example. 20 IN A 192.0.2.1", ""), now)
	for passed, want := range map[time.Duration]uint32{0: 20, 5500 * time.Millisecond: 15, 19 * time.Second: 1} {
		if got := c.get(key, now.Add(passed)); got == nil || got.Answer[0].Header().Ttl != want {
			t.Errorf("after %s: %v, want a TTL of %d", passed, got, want)
		}
	}
	if got := c.get(key, now.Add(20*time.Second)); got != nil {
		t.Errorf("in the end: %v", got)
	}
	cut := reply(0, "a.example. 20 IN A 192.0.2.1", "")
	cut.Truncated = true
	c.put(key, cut, now)
	if got := c.get(key, now); got != nil {
		t.Errorf("a truncated answer is cached: %v", got)
	}
}

// A lost packet must not cause a failure for the client.
func TestQueryIsRetried(t *testing.T) {
	t.Parallel()
	var came atomic.Int32
	w := newWorld(t, func(rw dns.ResponseWriter, q *dns.Msg) {
		if came.Add(1) > 1 {
			echo(rw, q)
		}
	})
	s := behind(t, w.port, "127.0.0.1")
	if reply := ask(t, s, "udp", "example.com.", dns.TypeA); len(reply.Answer) != 1 {
		t.Errorf("rcode %s", dns.RcodeToString[reply.Rcode])
	}
}

// A late answer of a slow server still counts.
func TestLateAnswerIsUsed(t *testing.T) {
	t.Parallel()
	var first atomic.Bool
	again := make(chan struct{})
	w := newWorld(t, func(rw dns.ResponseWriter, q *dns.Msg) {
		if first.CompareAndSwap(false, true) {
			<-again
			echo(rw, q)
			return
		}
		select {
		case <-again:
		default:
			close(again)
		}
	})
	s := behind(t, w.port, "127.0.0.1")
	if reply := ask(t, s, "udp", "example.com.", dns.TypeA); len(reply.Answer) != 1 {
		t.Errorf("rcode %s", dns.RcodeToString[reply.Rcode])
	}
}

func TestSilentServerIsQueriedLast(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	unresponsive, err := net.ListenPacket("udp", "127.0.0.2:"+w.port)
	if err != nil {
		t.Skip("the port is taken at another address: ", err)
	}
	defer unresponsive.Close()
	s := behind(t, w.port, "127.0.0.2", "127.0.0.1")
	if reply := ask(t, s, "udp", "example.com.", dns.TypeA); len(reply.Answer) != 1 {
		t.Fatalf("rcode %s", dns.RcodeToString[reply.Rcode])
	}
	u := s.upstream
	now := time.Now()
	first, second := net.JoinHostPort("127.0.0.2", w.port), net.JoinHostPort("127.0.0.1", w.port)
	u.mu.Lock()
	until := u.unresponsive[first].until
	u.mu.Unlock()
	if got := u.order(until.Add(-time.Nanosecond)); !slices.Equal(got, []string{second, first}) {
		t.Errorf("order = %v", got)
	}
	// After the pause, one query tries it.
	for i, want := range [][]string{{first, second}, {second, first}} {
		if got := u.order(now.Add(time.Hour)); !slices.Equal(got, want) {
			t.Errorf("order %d after the pause = %v, want %v", i, got, want)
		}
	}
	u.failed(map[string]int{first: 1})
	u.failed(map[string]int{first: 1}) // from a query that tried it last
	u.mu.Lock()
	times := u.unresponsive[first].times
	u.mu.Unlock()
	if times != 2 {
		t.Errorf("it failed %d times, want 2", times)
	}
	u.answered(first)
	if got := u.order(now); !slices.Equal(got, []string{first, second}) {
		t.Errorf("order after an answer = %v", got)
	}
}

// A name that a program finds through the search list must never hide a name outside the cluster.
func TestNamespaceDoesNotAnswerForOtherDomains(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(rw dns.ResponseWriter, q *dns.Msg) {
		switch q.Question[0].Name {
		case "github.com.":
			echo(rw, q)
		case "broken.com.":
			_ = rw.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
		default:
			_ = rw.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeNameError))
		}
	})
	hostile := known()
	for _, key := range []netmap.ServiceKey{{Namespace: "com", Workload: "github"}, {Namespace: "com", Workload: "mine"}, {Namespace: "com", Workload: "broken"}, {Namespace: "lan", Workload: "nas"}, {Namespace: "team", Workload: "github"}} {
		hostile.Services[key] = netmap.Service{Key: key, Addresses: []netip.Addr{address("10.63.0.66")}}
	}
	s := behindWith(t, func(c *Config) { c.Snapshot = func() *netmap.Snapshot { return hostile } }, w.port, "127.0.0.1")
	for name, want := range map[string]string{
		"github.com.short_names.rik.local.":         "NXDOMAIN []",
		"GitHub.COM.short_names.rik.local.":         "NXDOMAIN []",
		"broken.com.short_names.rik.local.":         "SERVFAIL []",
		"mine.com.short_names.rik.local.":           "NOERROR [mine.com.short_names.rik.local. 5 IN A 10.63.0.66]",
		"nas.lan.short_names.rik.local.":            "NOERROR [nas.lan.short_names.rik.local. 5 IN A 10.63.0.66]",
		"github.team.short_names.rik.local.":        "NOERROR [github.team.short_names.rik.local. 5 IN A 10.63.0.66]",
		"github.com.rik.local.":                     "NOERROR [github.com.rik.local. 5 IN A 10.63.0.66]",
		"github.com.":                               "NOERROR [github.com. 60 IN A 192.0.2.80]",
		"nobody.com.short_names.rik.local.":         "NXDOMAIN []",
		"default.short_names.rik.local.":            "NXDOMAIN []",
		"short_names.rik.local.":                    "NOERROR []",
		"web-x1.web.default.short_names.rik.local.": "NOERROR [web-x1.web.default.short_names.rik.local. 5 IN A 10.62.1.2]",
	} {
		reply := ask(t, s, "udp", name, dns.TypeA)
		if got := fmt.Sprintf("%s %v", dns.RcodeToString[reply.Rcode], texts(reply.Answer)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// On a host without name servers, no name outside the cluster can be meant.
func TestShortNamesWithoutServers(t *testing.T) {
	t.Parallel()
	key := netmap.ServiceKey{Namespace: "dev", Workload: "web"}
	alone := known()
	alone.Services[key] = netmap.Service{Key: key, Addresses: []netip.Addr{address("10.63.0.9")}}
	s := run(t, func(c *Config) { c.Snapshot = func() *netmap.Snapshot { return alone } })
	if reply := ask(t, s, "udp", "web.dev.short_names.rik.local.", dns.TypeA); len(reply.Answer) != 1 {
		t.Errorf("rcode %s", dns.RcodeToString[reply.Rcode])
	}
}
