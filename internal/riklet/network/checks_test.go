package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"rik.dev/rik/api/rik/nodestate"
	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/riklet/network/overlay"
)

// TestBetweenInstances checks which nodes are asked, and which may ask.
func TestBetweenInstances(t *testing.T) {
	t.Parallel()
	k := known{all: true, address: netip.MustParseAddr("10.62.0.255"), tunnel: &overlay.Tunnel{}}
	all := map[string]netmap.Peer{}
	for i, name := range []string{"self", "near1", "near2", "near3", "far1", "far2", "unreached"} {
		prefix, address := netip.MustParsePrefix(fmt.Sprintf("10.62.%d.0/24", i)), netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i))
		all[name] = netmap.Peer{Name: name, PodCIDR: prefix}
		switch {
		case strings.HasPrefix(name, "near"):
			k.direct = append(k.direct, overlay.Route{To: prefix, Via: address, Link: 2})
		case strings.HasPrefix(name, "far"):
			k.tunnel.Ends = append(k.tunnel.Ends, overlay.End{Name: name, To: prefix, Outer: address})
		}
	}
	for _, c := range []struct {
		able           string
		asked, others  string
		throughTunnels bool
	}{
		{"near1 near2 far1", "near1(192.0.2.1 10.62.1.255) near2(192.0.2.2 10.62.2.255)", "far1 far2 near3", false},
		{"far1 unreached", "far1(192.0.2.4 10.62.4.255)", "near1 near2 near3 far2", true},
		{"", "", "near1 near2 near3 far1 far2", true},
	} {
		s := &netmap.Snapshot{Peers: map[string]netmap.Peer{}}
		for name, p := range all {
			p.Answers = strings.Contains(c.able, name)
			s.Peers[name] = p
		}
		for range 10 { // the order is always the same
			v, through := betweenInstances("self", s, k)
			var asked, others []string
			for _, p := range v.Peers {
				asked = append(asked, fmt.Sprintf("%s(%s %s)", p.Name, p.Outer, p.Check))
			}
			for _, p := range v.Others {
				others = append(others, p.Name)
			}
			if strings.Join(asked, " ") != c.asked || strings.Join(others, " ") != c.others || through != c.throughTunnels || !v.Known {
				t.Fatalf("able: %q: asked %q, others %q, through tunnels %v, known %v; want %q, %q, %v", c.able, asked, others, through, v.Known, c.asked, c.others, c.throughTunnels)
			}
		}
	}
	if v, _ := betweenInstances("self", &netmap.Snapshot{}, known{all: true, unable: true}); v.Known || !v.Unable {
		t.Errorf("without a check port: %+v", v)
	}
}

// TestFailedChecksAreTroubles checks that what only follows from another trouble is left out.
func TestFailedChecksAreTroubles(t *testing.T) {
	t.Parallel()
	n := &Node{}
	want := func(kind nodestate.TroubleKind, text string) {
		t.Helper()
		if got := n.Troubles()[kind]; got != text {
			t.Errorf("%s: %q, want %q", kind, got, text)
		}
	}
	n.checkedBy(checkTunnels, "tunnels")
	n.checkedBy(checkInstances, "instances")
	n.checkedBy(checkNames, "questions")
	want(nodestate.TroubleOverlay, "tunnels; instances")
	n.known.throughTunnels = true
	want(nodestate.TroubleOverlay, "tunnels")
	n.checkedBy(checkTunnels, "")
	want(nodestate.TroubleOverlay, "instances")
	want(nodestate.TroubleNamesBlocked, "questions")
	n.trouble(nodestate.TroubleNames, errors.New("no name server"))
	want(nodestate.TroubleNamesBlocked, "")
	want(nodestate.TroubleNames, "no name server")
	n.trouble(nodestate.TroubleNames, nil)
	n.trouble(nodestate.TroubleNetwork, errNotSetUp)
	want(nodestate.TroubleNamesBlocked, "")
	n.trouble(nodestate.TroubleNetwork, nil)
	want(nodestate.TroubleNamesBlocked, "questions")
	n.checkedBy(checkNames, "")
	n.checkedBy(checkInstances, "")
	if all := n.Troubles(); len(all) > 0 {
		t.Errorf("troubles: %v, want none", all)
	}
}
