package nameserver

import (
	"net/netip"
	"testing"
)

// TestSuits checks that a process with the desired settings stays, on any port, except on the
// clients' port, which an earlier version used.
func TestSuits(t *testing.T) {
	t.Parallel()
	wanted := Settings{Address: netip.MustParseAddrPort("10.62.1.1:4953"), Resolver: "/etc/resolv.conf"}
	for name, c := range map[string]struct {
		has  Settings
		want bool
	}{
		"the same":            {wanted, true},
		"another port":        {Settings{netip.MustParseAddrPort("10.62.1.1:40001"), "/etc/resolv.conf"}, true},
		"the port of clients": {Settings{netip.MustParseAddrPort("10.62.1.1:53"), "/etc/resolv.conf"}, false},
		"another address":     {Settings{netip.MustParseAddrPort("10.62.9.1:4953"), "/etc/resolv.conf"}, false},
		"another resolv.conf": {Settings{netip.MustParseAddrPort("10.62.1.1:4953"), "/run/resolv.conf"}, false},
		"no settings":         {Settings{}, false},
	} {
		if got := c.has.matches(wanted); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
