package proxy

import (
	"fmt"
	"net/netip"
	"slices"
)

// Chains that keep strangers out. Strangers are machines that are not of the cluster,
// and containers of others on this machine.
const (
	// chainStrangers drops what strangers send to addresses of the cluster.
	chainStrangers = "RIKLET-X"
	// chainTunnel takes packets of tunnels from known nodes only.
	chainTunnel = "RIKLET-T"
)

// virtualFrom leads to the tree of virtual addresses from this node, its instances and
// whoever is allowed.
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

// outsiders are the matches of those who may use addresses of the cluster from beyond this
// machine, and of its instances.
func (r *renderer) outsiders() []string {
	all := []string{"-i " + r.in.Facts.Bridge}
	for _, link := range r.in.Facts.Ways {
		all = append(all, "-i "+link+" -s "+r.cluster)
	}
	for _, p := range r.in.Facts.AllowFrom {
		all = append(all, "-s "+p.Masked().String())
	}
	return all
}

// friends are the same with the machine itself.
func (r *renderer) friends() []string {
	return append(r.outsiders(), "-m addrtype --src-type LOCAL")
}

// strangers drops what is sent to addresses of the cluster by others than instances, this
// node and whoever is allowed. What came to an exposed port, and replies, pass.
func (r *renderer) strangers() {
	add := func(parts ...string) { r.add(filter, chainStrangers, parts...) }
	add("-m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j RETURN")
	add("-i lo -j RETURN")
	for _, from := range r.outsiders() {
		add(from, "-j RETURN")
	}
	add("-j DROP")
	r.add(filter, chainInput, "-d", r.pods, "-j", chainStrangers)
}

// tunnel takes packets of the overlay from the addresses of the cluster's nodes only, and
// opens the port for these, whatever comes after us. Instances send none: behind the
// node's own address these would look like the node's.
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

// peers are the addresses of the other nodes.
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
