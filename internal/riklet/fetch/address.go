package fetch

import (
	"net/netip"
	"strings"
)

// Guard checks addresses from an untrusted source before a connection to them. The zero Guard
// allows public addresses.
type Guard struct {
	// AllowNetworks lists networks that are always allowed.
	AllowNetworks []netip.Prefix
	// AllowPrivate also allows private addresses, but not those of the node itself, of the link
	// and of metadata services.
	AllowPrivate bool
}

// Refuses returns the reason why an address is refused, such as "a loopback address", or "" if
// it is allowed.
func (g Guard) Refuses(addr netip.Addr) string {
	addr = addr.Unmap().WithZone("")
	for _, p := range g.AllowNetworks {
		if p.Contains(addr) {
			return ""
		}
	}
	for _, s := range notPublic {
		if s.prefix.Contains(addr) {
			if g.AllowPrivate && s.what == private {
				return ""
			}
			return s.what
		}
	}
	return ""
}

const private = "a private address"

// notPublic lists the addresses of the node itself, of its network, and addresses that are not
// assigned. The first match counts: https://www.iana.org/assignments/iana-ipv4-special-registry
// and the one for IPv6.
var notPublic = func() (all []special) {
	for _, s := range []struct{ what, prefixes string }{
		// Those of AWS and most others, AWS over IPv6, Alibaba, and Azure, whose address is
		// public.
		{"the address of a cloud metadata service", "169.254.169.254/32 fd00:ec2::254/128 100.100.100.200/32 168.63.129.16/32"},
		{"an unspecified address", "0.0.0.0/8 ::/128"},
		{"a loopback address", "127.0.0.0/8 ::1/128"},
		{"a link-local address", "169.254.0.0/16 fe80::/10"},
		{private, "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7 fec0::/10"},
		{"a multicast address", "224.0.0.0/4 ff00::/8"},
		{"a reserved address", "192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 100::/64 2001:db8::/32 3fff::/20 5f00::/16"},
		// These contain an IPv4 address for a translator.
		{"a translated address", "::/96 64:ff9b::/96 64:ff9b:1::/48 2001::/32 2002::/16"},
	} {
		for _, p := range strings.Fields(s.prefixes) {
			all = append(all, special{netip.MustParsePrefix(p), s.what})
		}
	}
	return all
}()

type special struct {
	prefix netip.Prefix
	what   string
}
