package bridge

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"rik.dev/rik/internal/riklet/network/ipam"
)

func TestDesired(t *testing.T) {
	t.Parallel()
	p, err := Desired("rik0", Settings{PodCIDR: netip.MustParsePrefix("10.62.7.0/24"), MTU: 1450})
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%s %s %s %d", p.Name, p.Gateway, p.MAC, p.MTU)
	for _, s := range p.Sysctls {
		got += fmt.Sprintf("\n%s=%s", s.Path, s.Value)
	}
	want := `rik0 10.62.7.1/24 02:72:0a:3e:07:01 1450
net/ipv4/ip_forward=1
net/ipv4/conf/all/send_redirects=0
net/ipv4/conf/rik0/send_redirects=0
net/ipv4/conf/rik0/rp_filter=1
net/ipv6/conf/rik0/accept_ra=0
net/ipv6/conf/rik0/disable_ipv6=1`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Desired() (-want +got):\n%s", diff)
	}
	for _, bad := range []netip.Prefix{{}, netip.MustParsePrefix("fd00::/64"), netip.MustParsePrefix("10.62.7.9/24")} {
		if _, err := Desired("rik0", Settings{PodCIDR: bad}); !errors.Is(err, ipam.ErrRange) {
			t.Errorf("Desired(%s) = %v, want ErrRange", bad, err)
		}
	}
}

func use(prefix, device string) Use {
	return Use{Prefix: netip.MustParsePrefix(prefix), Device: device}
}

// beyondLink returns a route that does not lead to machines on a link.
func beyondLink(prefix, device string) Use {
	u := use(prefix, device)
	u.CrossesGateway = true
	return u
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	ranges := []ClusterRange{
		{netip.MustParsePrefix("10.62.7.0/24"), "this node's range", "--cluster-cidr"},
		{netip.MustParsePrefix("10.63.0.0/16"), "the range of cluster IPs", "--service-cidr"},
		{netip.Prefix{}, "nothing", "--none"},
	}
	address := use("10.63.4.5/24", "eth0")
	address.Address = true
	marked := use("10.62.7.0/25", "eth0")
	marked.Protocol = RouteProtocol
	cases := []struct {
		name string
		host []Use
		want []string // parts of the message; none: no overlap
	}{
		{"nothing", nil, nil},
		{"elsewhere", []Use{use("192.168.1.0/24", "eth0"), use("10.62.8.0/24", "eth0"), use("fd00::/8", "eth0")}, nil},
		{"default route and its halves", []Use{use("0.0.0.0/0", "eth0"), use("0.0.0.0/1", "tun0"), use("128.0.0.0/1", "tun0")}, nil},
		{"ours", []Use{use("10.62.7.0/24", "rik0"), use("10.62.7.0/24", "rik.1"), use("10.62.7.9/32", Device("u")), marked}, nil},
		{"not quite ours", []Use{use("10.62.7.0/24", "rik1")}, []string{"10.62.7.0/24 on rik1"}},
		{"a smaller route", []Use{use("10.62.7.128/25", "eth1")}, []string{"this node's range 10.62.7.0/24", "the route to 10.62.7.128/25 on eth1", "--cluster-cidr"}},
		{"a larger network", []Use{use("10.0.0.0/8", "eth1")}, []string{"10.0.0.0/8 on eth1", "--cluster-cidr", "--service-cidr"}},
		{"larger routes through a gateway", []Use{beyondLink("10.0.0.0/8", "tun0"), beyondLink("10.62.0.0/15", "eth0"), beyondLink("10.0.0.0/8", "")}, nil},
		{"the same route through a gateway", []Use{beyondLink("10.63.0.0/16", "eth0")}, []string{"10.63.0.0/16 on eth0", "--service-cidr"}},
		{"a smaller route through a gateway", []Use{beyondLink("10.63.9.0/24", "eth0")}, []string{"10.63.9.0/24 on eth0"}},
		{"a larger network of an address", []Use{{Prefix: netip.MustParsePrefix("10.0.0.5/8"), Device: "tun0", Address: true, CrossesGateway: true}}, []string{"10.0.0.5/8 on tun0"}},
		{"an address", []Use{address}, []string{"the address 10.63.4.5/24 on eth0", "--service-cidr"}},
		{"a blackhole", []Use{beyondLink("10.62.7.0/25", "")}, []string{"the route to 10.62.7.0/25; choose"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := CheckOverlap("rik0", ranges, tc.host)
			if (err != nil) != (len(tc.want) > 0) || (err != nil && !errors.Is(err, ErrOverlap)) {
				t.Fatalf("CheckOverlap() = %v, want %q", err, tc.want)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("CheckOverlap() = %v, want %q in it", err, part)
				}
			}
		})
	}
	if err := CheckOverlap("rik0", ranges, []Use{address, address}); strings.Count(err.Error(), "eth0") != 1 {
		t.Errorf("CheckOverlap() = %v, want one and the same use named once", err)
	}
}

func TestNamesOfDevices(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		uid := rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?`).Draw(t, "uid")
		name := Device(uid)
		if !deviceName.MatchString(name) || len(name) > 15 {
			t.Fatalf("Device(%s) = %s", uid, name)
		}
		b := rapid.Uint32().Draw(t, "address")
		address := netip.AddrFrom4([4]byte{byte(b >> 24), byte(b >> 16), byte(b >> 8), byte(b)})
		gotUID, got, ok := readAlias("rik0", alias("rik0", uid, address))
		if !ok || gotUID != uid || got != address {
			t.Fatalf("readAlias(alias(%s, %s)) = %s, %s, %v", uid, address, gotUID, got, ok)
		}
	})
	for _, text := range []string{"", "rik0", "rik0 u1", "rik0 u1 x", "rik0 u1 ::1", "rik1 u1 10.62.7.2", "rik0  10.62.7.2", "rik0 u1 10.62.7.2 more"} {
		if uid, _, ok := readAlias("rik0", text); ok {
			t.Errorf("readAlias(%q) = %q, want that it is not ours", text, uid)
		}
	}
}
