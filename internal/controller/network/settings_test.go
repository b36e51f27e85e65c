package network

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		options Options
		wrong   []string // words of the error; none if the options are valid
	}{
		"defaults":      {Options{}, nil},
		"other ranges":  {Options{ClusterCIDR: "192.168.0.0/20", ServiceCIDR: "192.168.16.0/24", NodeCIDRSize: 26, Domain: "a.example."}, nil},
		"one node":      {Options{ClusterCIDR: "172.16.1.0/24", NodeCIDRSize: 24}, nil},
		"not a range":   {Options{ClusterCIDR: "10.62"}, []string{"--cluster-cidr", "10.62"}},
		"IPv6":          {Options{ServiceCIDR: "fd00::/112"}, []string{"--service-cidr", "only IPv4"}},
		"IPv6 and else": {Options{ClusterCIDR: "fd00::/64", Domain: "A_B"}, []string{"--cluster-cidr", "only IPv4", "--cluster-domain"}},
		"not masked":    {Options{ClusterCIDR: "10.62.0.1/16"}, []string{"use 10.62.0.0/16"}},
		"overlap":       {Options{ClusterCIDR: "10.0.0.0/8", NodeCIDRSize: 24}, []string{"overlap"}},
		"node too big":  {Options{NodeCIDRSize: 15}, []string{"--node-cidr-size 15", "use 16 to 30"}},
		"node too small": {
			Options{NodeCIDRSize: 31}, []string{"--node-cidr-size 31", "use 16 to 30"},
		},
		"too many nodes":  {Options{ClusterCIDR: "11.0.0.0/8", NodeCIDRSize: 29}, []string{"use 8 to 28"}},
		"too large":       {Options{ClusterCIDR: "0.0.0.0/0"}, []string{"--cluster-cidr", "8 to 30"}},
		"loopback":        {Options{ServiceCIDR: "127.0.0.0/16"}, []string{"--service-cidr", "cannot have these addresses"}},
		"multicast":       {Options{ServiceCIDR: "224.0.0.0/16"}, []string{"--service-cidr", "cannot have these addresses"}},
		"service too few": {Options{ServiceCIDR: "10.63.0.0/31"}, []string{"--service-cidr"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := tc.options.Parse()
			if (err == nil) != (tc.wrong == nil) {
				t.Fatalf("Parse() = %+v, %v", s, err)
			}
			for _, words := range tc.wrong {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("Parse() = %v, want %q in it", err, words)
				}
			}
		})
	}
	s, err := Options{Domain: "a.example."}.Parse()
	want := Settings{
		ClusterCIDR: netip.MustParsePrefix("10.62.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.63.0.0/16"),
		NodeCIDRSize: 24, Domain: "a.example",
	}
	if err != nil || s != want {
		t.Errorf("Parse() = %+v, %v, want %+v", s, err, want)
	}
}
