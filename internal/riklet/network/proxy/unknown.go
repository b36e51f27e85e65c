package proxy

import (
	"fmt"
	"net/netip"
	"slices"
)

// Chains that protect against unknown clients: machines outside the cluster, and containers of
// other programs on this machine.
const (
	// chainUnknown drops packets of unknown clients to addresses of the cluster.
	chainUnknown = "RIKLET-X"
	// chainTunnel accepts tunnel packets only from known nodes.
	chainTunnel = "RIKLET-T"
)

// virtualFrom adds the rules to the tree of virtual addresses for packets from this node, its
// instances and the allowed ranges.
func (r *renderer) virtualFrom() {
	add := func(parts ...string) {
		r.add(nat, chainEntry, append([]string{"-d", r.service}, append(parts, "-g", chainVirtual)...)...)
	}
	add("-i", r.in.Facts.Bridge)
	add("-m addrtype --src-type LOCAL")
	for _, p := range r.in.Facts.AllowFrom {
		add("-s", p.Masked().String())
	}
}

// allowedSources returns matches for packets of this machine's instances, and of the sources
// outside this machine that may use addresses of the cluster.
func (r *renderer) allowedSources() []string {
	all := []string{"-i " + r.in.Facts.Bridge}
	for _, link := range r.in.Facts.Ways {
		all = append(all, "-i "+link+" -s "+r.cluster)
	}
	for _, p := range r.in.Facts.AllowFrom {
		all = append(all, "-s "+p.Masked().String())
	}
	return all
}

// knownSources returns the matches of allowedSources and one for the machine itself.
func (r *renderer) knownSources() []string {
	return append(r.allowedSources(), "-m addrtype --src-type LOCAL")
}

// dropUnknown adds the rules that drop packets to addresses of the cluster, except from instances,
// this node and allowed ranges. Packets to exposed ports, and replies, pass.
func (r *renderer) dropUnknown() {
	add := func(parts ...string) { r.add(filter, chainUnknown, parts...) }
	add("-m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j RETURN")
	add("-i lo -j RETURN")
	for _, from := range r.allowedSources() {
		add(from, "-j RETURN")
	}
	add("-j DROP")
	r.add(filter, chainInput, "-d", r.pods, "-j", chainUnknown)
}

// tunnel accepts overlay packets only from the addresses of the cluster's nodes. For these it
// opens the port, whatever rules follow. It drops those of instances: behind the node's own
// address they would look like the node's.
func (r *renderer) tunnel() {
	if r.in.Facts.TunnelPort == 0 {
		return
	}
	match := onPort("udp", int(r.in.Facts.TunnelPort))
	r.add(filter, chainInput, match, "-j", chainTunnel)
	r.add(filter, chainTunnel, "-i", r.in.Facts.Bridge, "-j DROP")
	var known []leaf
	for _, a := range r.peers() {
		known = append(known, leaf{number(a), "-s " + a.String() + "/32 -j ACCEPT"})
	}
	tree{
		add:   func(chain, rule string) { r.out.Add(filter, chain, rule) },
		name:  func(base uint32, bits int) string { return fmt.Sprintf("%s-%08X-%d", chainTunnel, base, bits) },
		match: func(base uint32, bits int) string { return "-s " + netip.PrefixFrom(address(base), bits).String() },
		jump:  true,
		width: 32,
	}.grow(chainTunnel, 0, 0, known)
	r.add(filter, chainTunnel, "-j DROP")
}

// peers returns the addresses of the other nodes.
func (r *renderer) peers() []netip.Addr {
	var all []netip.Addr
	for name, p := range r.in.Snapshot.Peers {
		for _, a := range p.Sources() {
			if name != r.in.Facts.Node && a.Is4() && !a.IsLoopback() {
				all = append(all, a)
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}
