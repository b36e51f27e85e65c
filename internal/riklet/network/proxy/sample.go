package proxy

import (
	"net/netip"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/network/netmap"
)

// Sample returns an input whose rules have every match and target that rules of rik can have. A
// machine whose kernel and programs accept these rules accepts those of any cluster, except for the
// number of rules. All addresses are examples.
func Sample() Input {
	s := &netmap.Snapshot{
		Settings: netmap.Settings{
			ClusterCIDR: netip.MustParsePrefix("10.62.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.63.0.0/16"), Domain: "rik.local",
		},
		Peers:     map[string]netmap.Peer{},
		Services:  map[netmap.ServiceKey]netmap.Service{},
		Endpoints: map[netmap.ServiceKey]map[string]netmap.Endpoint{},
	}
	for name, at := range map[string][2]string{"a": {"192.0.2.1", "10.62.1.0/24"}, "b": {"192.0.2.2", "10.62.2.0/24"}} {
		s.Peers[name] = netmap.Peer{Name: name, Address: netip.MustParseAddr(at[0]), PodCIDR: netip.MustParsePrefix(at[1]), Answers: true}
	}
	var ports []netmap.Port
	for i, protocol := range []rikv1alpha1.Protocol{rikv1alpha1.ProtocolTCP, rikv1alpha1.ProtocolUDP, rikv1alpha1.ProtocolSCTP} {
		number := uint16(30000 + i)
		ports = append(ports,
			netmap.Port{Port: number, TargetPort: 80, Protocol: protocol, Type: rikv1alpha1.PortNodePort},
			netmap.Port{Port: number + 100, TargetPort: 80, Protocol: protocol, Type: rikv1alpha1.PortClusterIP})
	}
	for name, ends := range map[string][]netmap.Endpoint{
		"ready": {
			{UID: "1", Node: "a", Address: netip.MustParseAddr("10.62.1.2"), Ready: true},
			{UID: "2", Node: "b", Address: netip.MustParseAddr("10.62.2.2"), Ready: true},
			{UID: "3", Node: "b", Address: netip.MustParseAddr("192.0.2.2"), Ready: true}, // in the node's own network
		},
		"unready": nil,
	} {
		key := netmap.ServiceKey{Namespace: "default", Workload: name}
		address := netip.MustParseAddr("10.63.0.1")
		own := ports
		if name == "unready" {
			address = netip.MustParseAddr("10.63.0.2")
			own = nil
			for _, p := range ports {
				p.Port += 1000
				own = append(own, p)
			}
		}
		s.Services[key] = netmap.Service{Key: key, Addresses: []netip.Addr{address}, Ports: own}
		s.Endpoints[key] = map[string]netmap.Endpoint{}
		for _, e := range ends {
			e.Service, e.Name, e.Ports = key, e.UID, own
			s.Endpoints[key][e.UID] = e
		}
	}
	return Input{Snapshot: s, Facts: Facts{
		Node: "a", PodCIDR: netip.MustParsePrefix("10.62.1.0/24"), Bridge: "rik0", Ways: []string{"rik.1", "eth0"}, TunnelPort: 8472, NamePort: 4953,
		AllowFrom: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
	}}
}
