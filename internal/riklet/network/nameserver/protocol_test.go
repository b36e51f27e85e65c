package nameserver

import (
	"net/netip"
	"testing"
)

// TestSuits: a process is kept that does what is wanted, on whichever port; one of an earlier
// version, on the port that clients ask, is not.
func TestSuits(t *testing.T) {
	t.Parallel()
	wanted := Settings{Address: netip.MustParseAddrPort("10.62.1.1:4953"), Resolver: "/etc/resolv.conf"}
	for name, c := range map[string]struct {
		has  Settings
		want bool
	}{
		"the same":             {wanted, true},
		"another port":         {Settings{netip.MustParseAddrPort("10.62.1.1:40001"), "/etc/resolv.conf"}, true},
		"the port of clients":  {Settings{netip.MustParseAddrPort("10.62.1.1:53"), "/etc/resolv.conf"}, false},
		"another address":      {Settings{netip.MustParseAddrPort("10.62.9.1:4953"), "/etc/resolv.conf"}, false},
		"another resolv.conf":  {Settings{netip.MustParseAddrPort("10.62.1.1:4953"), "/run/resolv.conf"}, false},
		"nothing that is said": {Settings{}, false},
	} {
		if got := c.has.suits(wanted); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
