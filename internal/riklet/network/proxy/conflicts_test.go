package proxy

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSettle checks that the first user keeps a port. Privileged processes get it even later, at
// addresses that other machines can reach.
func TestSettle(t *testing.T) {
	t.Parallel()
	p := HostPort{tcp, 30080}
	cases := map[string]struct {
		before   reserved
		listener Listener
		host, lo bool // the process keeps the port: at all addresses, at loopback
	}{
		"root, before the service":                    {reserved{}, Listener{p, false, true}, true, false},
		"root, after the service":                     {reserved{p: everywhere}, Listener{p, false, true}, true, false},
		"a user, before the service":                  {reserved{}, Listener{p, false, false}, true, false},
		"a user, after the service":                   {reserved{p: everywhere}, Listener{p, false, false}, false, false},
		"a user, after a service without loopback":    {reserved{p: exceptLoopback}, Listener{p, false, false}, false, false},
		"a user at loopback, before the service":      {reserved{}, Listener{p, true, false}, false, true},
		"a user at loopback keeps it there":           {reserved{p: exceptLoopback}, Listener{p, true, false}, false, true},
		"a user at loopback, after the service":       {reserved{p: everywhere}, Listener{p, true, false}, false, false},
		"root at loopback, after the service":         {reserved{p: everywhere}, Listener{p, true, true}, false, true},
		"a user, after a service of another protocol": {reserved{HostPort{udp, 30080}: everywhere}, Listener{p, false, false}, true, false},
	}
	for name, tc := range cases {
		host, lo, lost := tc.before.settle([]Listener{tc.listener})
		if got := len(host) == 1; got != tc.host {
			t.Errorf("%s: keeps the port: %v, want %v", name, got, tc.host)
		}
		if got := len(lo) == 1; got != tc.lo {
			t.Errorf("%s: keeps the port at loopback: %v, want %v", name, got, tc.lo)
		}
		if got := lost[p]; got != (!tc.listener.Loopback && !tc.host) {
			t.Errorf("%s: lost is %v", name, got)
		}
	}
}

// TestRenderLoopbackListeners checks that a process at a loopback address keeps the port there,
// and that the service has it at all other addresses.
func TestRenderLoopbackListeners(t *testing.T) {
	t.Parallel()
	s := basic()
	expose(s, "web", "10.63.0.5", port(30080, 8080, tcp, onNodes), port(30081, 8080, tcp, onNodes))
	end(s, "web", "1", "a", "10.62.1.3", true)
	in := input(s)
	in.Facts.LoopbackPorts = []HostPort{{tcp, 30080}}
	rules := Render(in)
	for _, tc := range []struct {
		to   string
		port int
		want string
	}{
		{"192.0.2.1", 30080, "DNAT 10.62.1.3:8080"}, {"127.0.0.1", 30080, ""},
		{"192.0.2.1", 30081, "DNAT 10.62.1.3:8080"}, {"127.0.0.1", 30081, "DNAT 10.62.1.3:8080"},
	} {
		got := simulate(t, rules[nat], chainEntry, packet{to: netip.MustParseAddr(tc.to), local: true, protocol: "tcp", port: tc.port, state: "NEW"})
		if got.probability[tc.want] != 1 {
			t.Errorf("%s:%d: %v, want %q", tc.to, tc.port, got.probability, tc.want)
		}
	}
	want := reserved{HostPort{tcp, 30080}: exceptLoopback, HostPort{tcp, 30081}: everywhere}
	if diff := cmp.Diff(want, reservedBy(servicePorts(in))); diff != "" {
		t.Errorf("reserved (-want +got):\n%s", diff)
	}
	// A service without ready endpoints refuses at the same addresses.
	end(s, "web", "1", "a", "10.62.1.3", false)
	for to, want := range map[string]string{"192.0.2.1": "REJECT tcp-reset", "127.0.0.1": ""} {
		got := simulate(t, Render(in)[filter], chainInput, packet{to: netip.MustParseAddr(to), in: "lo", local: true, protocol: "tcp", port: 30080, state: "NEW"})
		if got.probability[want] != 1 {
			t.Errorf("not ready, %s: %v, want %q", to, got.probability, want)
		}
	}
}

// TestConflicts checks the lists of conflicts that a process or a service wins.
func TestConflicts(t *testing.T) {
	t.Parallel()
	s := basic()
	expose(s, "a", "10.63.0.5", port(30080, 8080, tcp, onNodes))
	expose(s, "b", "10.63.0.6", port(30081, 8080, tcp, onNodes), port(80, 8080, tcp, inside))
	expose(s, "none", "10.63.0.7", port(30082, 8080, tcp, onNodes))
	end(s, "a", "1", "a", "10.62.1.3", true)
	end(s, "b", "2", "a", "10.62.1.4", true)
	in := input(s)
	in.Facts.HostPorts = []HostPort{{tcp, 30080}, {tcp, 80}, {tcp, 30082}}
	var got []string
	for _, c := range conflicts(in, map[HostPort]bool{{tcp, 30081}: true}) {
		got = append(got, c.String())
	}
	if diff := cmp.Diff([]string{
		"TCP 30080 of default/a: a process of the machine uses it",
		"TCP 30081 of default/b: a process of the machine listens on it, but connections go to the workload",
	}, got); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
}
