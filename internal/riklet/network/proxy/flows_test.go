package proxy

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func known(in Input) *flows { return newFlows(in, servicePorts(in)) }

func TestStale(t *testing.T) {
	t.Parallel()
	s := basic()
	expose(s, "dns", "10.63.0.1", port(30053, 53, udp, onNodes))
	end(s, "dns", "ready", "a", "10.62.1.2", true)
	end(s, "dns", "waiting", "a", "10.62.1.3", false)
	end(s, "dns", "draining", "a", "10.62.1.5", false)
	end(s, "dns", "drained", "a", "10.62.1.6", false)
	for _, uid := range []string{"draining", "drained"} {
		e := s.Endpoints[key("dns")][uid]
		e.Draining = true
		s.Endpoints[key("dns")][uid] = e
	}
	expose(s, "closed", "10.63.0.2", port(30054, 53, udp, onNodes))
	end(s, "closed", "waiting2", "a", "10.62.1.3", false)
	expose(s, "held", "10.63.0.3", port(7000, 53, udp, onNodes))
	end(s, "held", "ready2", "a", "10.62.1.2", true)
	expose(s, "names", "10.63.0.4", port(53, 53, udp, onNodes))
	end(s, "names", "ready3", "a", "10.62.1.2", true)
	in := input(s)
	in.Facts.HostPorts = []HostPort{{udp, 7000}}
	in.Drained = map[string]bool{"drained": true}
	f := known(in)
	f.local = func(a netip.Addr) bool {
		return a == netip.MustParseAddr("192.0.2.1") || a == netip.MustParseAddr("10.62.1.1")
	}
	for name, c := range map[string]struct {
		protocol uint8
		to, from string
		marked   bool
		want     bool
	}{
		"to a ready endpoint":                          {unix.IPPROTO_UDP, "10.63.0.1:30053", "10.62.1.2:53", false, false},
		"to one that is not ready":                     {unix.IPPROTO_UDP, "10.63.0.1:30053", "10.62.1.3:53", false, true},
		"to one that is being deleted":                 {unix.IPPROTO_UDP, "10.63.0.1:30053", "10.62.1.5:53", false, false},
		"to one after its drain period":                {unix.IPPROTO_UDP, "10.63.0.1:30053", "10.62.1.6:53", false, true},
		"to one that is gone":                          {unix.IPPROTO_UDP, "10.63.0.1:30053", "10.62.1.4:53", false, true},
		"to another port of one that is ready":         {unix.IPPROTO_UDP, "10.63.0.1:30053", "10.62.1.2:54", false, true},
		"not redirected although an endpoint is ready": {unix.IPPROTO_UDP, "10.63.0.1:30053", "10.63.0.1:30053", false, true},
		"not redirected, without an endpoint":          {unix.IPPROTO_UDP, "10.63.0.2:30054", "10.63.0.2:30054", false, false},
		"of a service that is gone":                    {unix.IPPROTO_UDP, "10.63.9.9:1", "10.62.1.2:53", false, true},
		"of the node's port":                           {unix.IPPROTO_UDP, "192.0.2.1:30053", "10.62.1.2:53", false, false},
		"of the node's port, gone":                     {unix.IPPROTO_UDP, "192.0.2.1:30053", "10.62.1.4:53", false, true},
		"of the node's port before it was exposed":     {unix.IPPROTO_UDP, "192.0.2.1:30053", "192.0.2.1:30053", false, true},
		"of a port that is exposed no more":            {unix.IPPROTO_UDP, "192.0.2.1:30099", "10.62.1.4:53", false, true},
		"the same, to another node's own network":      {unix.IPPROTO_UDP, "192.0.2.1:30099", "192.0.2.2:53", true, true},
		"redirected by another program":                {unix.IPPROTO_UDP, "192.0.2.1:30099", "172.17.0.2:53", false, false},
		"of a port that the host uses":                 {unix.IPPROTO_UDP, "192.0.2.1:7000", "192.0.2.1:7000", false, false},
		"of the node, to the same port of a machine":   {unix.IPPROTO_UDP, "198.51.100.1:30053", "198.51.100.1:30053", false, false},
		"a DNS query":                                  {unix.IPPROTO_UDP, "10.62.1.1:53", "10.62.1.1:4953", false, false},
		"one to another port of an earlier server":     {unix.IPPROTO_UDP, "10.62.1.1:53", "10.62.1.1:40001", false, true},
		"one that was not redirected":                  {unix.IPPROTO_UDP, "10.62.1.1:53", "10.62.1.1:53", false, true},
		"one that an earlier riklet led on":            {unix.IPPROTO_UDP, "10.62.1.1:53", "10.62.1.2:53", false, true},
		"over SCTP":                                    {unix.IPPROTO_SCTP, "10.63.9.9:1", "10.62.1.2:53", false, true},
		"over TCP":                                     {unix.IPPROTO_TCP, "10.63.9.9:1", "10.62.1.2:53", false, false},
	} {
		x := flow{c.protocol, netip.MustParseAddrPort(c.to), netip.MustParseAddrPort(c.from), c.marked}
		if got := f.stale(x); got != c.want {
			t.Errorf("a flow %s: stale is %v, want %v", name, got, c.want)
		}
	}
}

// TestFlowsSum checks that the sum changes if flows must be checked.
func TestFlowsSum(t *testing.T) {
	t.Parallel()
	s := basic()
	expose(s, "dns", "10.63.0.1", port(30053, 53, udp, onNodes))
	expose(s, "web", "10.63.0.2", port(30080, 80, tcp, onNodes))
	end(s, "dns", "1", "a", "10.62.1.2", true)
	end(s, "dns", "2", "a", "10.62.1.3", true)
	before := known(input(s)).sum()
	if again := known(input(s)).sum(); again != before {
		t.Errorf("the same table: got %d, then %d", before, again)
	}
	end(s, "web", "3", "a", "10.62.1.4", true)
	if got := known(input(s)).sum(); got != before {
		t.Error("an endpoint over TCP changes it")
	}
	draining := func(uid string) {
		e := s.Endpoints[key("dns")][uid]
		e.Ready, e.Draining = false, true
		s.Endpoints[key("dns")][uid] = e
	}
	draining("2")
	if got := known(input(s)).sum(); got != before {
		t.Error("an endpoint that is being deleted changes it, while there is another")
	}
	over := input(s)
	over.Drained = map[string]bool{"2": true}
	if got := known(over).sum(); got == before {
		t.Error("a drain period is over, and it is the same")
	}
	end(s, "dns", "2", "a", "10.62.1.3", false)
	if got := known(input(s)).sum(); got == before {
		t.Error("an endpoint is not ready any more, and it is the same")
	}
	draining("2")
	end(s, "dns", "1", "a", "10.62.1.2", false)
	none := known(input(s)).sum()
	if none == before {
		t.Error("no endpoint is ready any more, and it is the same")
	}
	delete(s.Endpoints[key("dns")], "2")
	if got := known(input(s)).sum(); got == none {
		t.Error("an endpoint is gone, and it is the same")
	}
}

func TestLocalnet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	set := func(link, value string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, link, "route_localnet"), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	values := func() map[string]string {
		all := map[string]string{}
		for _, link := range []string{"rik0", "eth0", "other"} {
			value, err := os.ReadFile(filepath.Join(dir, link, "route_localnet"))
			if err != nil {
				t.Fatal(err)
			}
			all[link] = string(value[:1])
		}
		return all
	}
	set("rik0", "0\n")
	set("eth0", "1\n") // set by another program
	set("other", "0\n")
	links := []string{"rik0", "eth0", "missing"}
	l := newLocalnet(dir)
	var opened []string
	for range 2 {
		opened = l.plan(append(links, "..", "a b"))
		if err := l.open(opened); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"rik0"}, opened); diff != "" {
			t.Errorf("ours to open (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff(map[string]string{"rik0": "1", "eth0": "1", "other": "0"}, values()); diff != "" {
		t.Errorf("opened (-want +got):\n%s", diff)
	}
	// A later process reads the links from the rules that it finds.
	in := input(basic())
	in.Opened = append(opened, "gone0")
	l = newLocalnet(dir)
	l.readComment(Render(in)[filter].Chains[chainInput])
	if diff := cmp.Diff([]string{"gone0", "rik0"}, l.plan(nil)); diff != "" {
		t.Errorf("remembered (-want +got):\n%s", diff)
	}
	for range 2 {
		if err := l.restore(); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]string{"rik0": "0", "eth0": "1", "other": "0"}, values()); diff != "" {
		t.Errorf("restored (-want +got):\n%s", diff)
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{Interval: -1}); err == nil {
		t.Error("no error for a configuration without anything")
	}
}
