package reach

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestAnsweredSince(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		unanswered time.Time
		want       state
	}{
		"answered":    {time.Time{}, fine},
		"one missed":  {now, waiting},
		"some missed": {now.Add(-59 * time.Second), waiting},
		"all missed":  {now.Add(-time.Minute), inbound},
	} {
		if got := answeredSince(c.unanswered, now, time.Minute); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestDescribeNames checks that a message contains the port to accept, and fits into a condition.
func TestDescribeNames(t *testing.T) {
	t.Parallel()
	v := NamesView{Listens: netip.MustParseAddrPort("10.62.1.1:4953"), Bridge: "rik0"}
	for _, c := range []struct {
		here  error
		parts []string
	}{
		{nil, []string{"UDP and TCP port 4953 from the link rik0", "--add-interface=rik0", "ufw allow in on rik0 to any port 4953", `iifname rik0 meta l4proto { tcp, udp } th dport 4953 accept`}},
		{errors.New("i/o timeout"), []string{"10.62.1.1:4953", "i/o timeout", "network/dns.log"}},
	} {
		text := describeNames(v, c.here)
		if len(text) > 1024 {
			t.Errorf("%d bytes: %s", len(text), text)
		}
		for _, part := range c.parts {
			if !strings.Contains(text, part) {
				t.Errorf("no %q in: %s", part, text)
			}
		}
	}
}

// reports collects the troubles that a check reports.
type reports chan string

func (r reports) next(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-r:
		if got != want {
			t.Errorf("reported %q, want %q", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("nothing was reported, want %q", want)
	}
}

// TestNames checks that a node has a trouble until the first answer, and that the result survives a
// restart.
func TestNames(t *testing.T) {
	t.Parallel()
	namespace, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetReply(q))
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = conn.Close() })
	at := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	path := filepath.Join(t.TempDir(), "names")
	run := func(v NamesView, want ...string) {
		t.Helper()
		reported := make(reports, 10)
		n := NewNames(NamesConfig{View: func() NamesView { return v }, Notified: func(text string) { reported <- text }, Path: path, Interval: 100 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		for _, text := range want {
			reported.next(t, text)
		}
		cancel()
		if err := <-done; err != nil || len(reported) > 0 {
			t.Errorf("Run() = %v, with %d more reports", err, len(reported))
		}
	}
	run(NamesView{}, namesUnchecked)
	// A check that cannot work has no result. It is not saved as a success.
	run(NamesView{Unable: true}, namesUnchecked, "")
	run(NamesView{Known: true, Namespace: namespace, Server: at, Listens: at, Domain: "rik.local"}, namesUnchecked, "")
	run(NamesView{}, "")
}
