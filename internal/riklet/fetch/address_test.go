package fetch

import (
	"net/netip"
	"strings"
	"testing"
)

func TestGuard(t *testing.T) {
	t.Parallel()
	everything := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	for _, tc := range []struct {
		addrs           string
		public, private string // the result without and with AllowPrivate; "" means allowed
	}{
		{"1.1.1.1 2606:4700::1111 ::ffff:1.1.1.1", "", ""},
		{"10.1.2.3 172.31.0.1 192.168.0.1 100.64.0.1 fd12::1 ::ffff:10.0.0.1", "private", ""},
		{"127.0.0.1 ::1 ::ffff:127.9.9.9", "loopback", "loopback"},
		{"169.254.1.1 fe80::1 fe80::1%eth0", "link-local", "link-local"},
		{"169.254.169.254 fd00:ec2::254 100.100.100.200 168.63.129.16", "metadata", "metadata"},
		{"0.0.0.0 0.1.2.3 ::", "unspecified", "unspecified"},
		{"224.0.0.1 ff02::1", "multicast", "multicast"},
		{"192.0.2.1 255.255.255.255", "reserved", "reserved"},
		{"64:ff9b::7f00:1 2002:7f00:1::", "translated", "translated"},
	} {
		for _, text := range strings.Fields(tc.addrs) {
			addr := netip.MustParseAddr(text)
			for _, g := range []struct {
				Guard
				want string
			}{{Guard{}, tc.public}, {Guard{AllowPrivate: true}, tc.private}, {Guard{AllowNetworks: everything}, ""}} {
				if got := g.Refuses(addr); (got == "") != (g.want == "") || !strings.Contains(got, g.want) {
					t.Errorf("%+v: Refuses(%s) = %q, want %q", g.Guard, addr, got, g.want)
				}
			}
		}
	}
}
