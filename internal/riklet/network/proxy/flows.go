package proxy

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// flows decides which of the kernel's tracked flows lead to endpoints that no longer exist. It
// handles only UDP and SCTP: such a client may send forever, and during that time the kernel does
// not consult the rules again. A TCP client notices by itself.
type flows struct {
	cluster, services netip.Prefix
	names             netip.AddrPort // where DNS queries are sent
	answers           netip.AddrPort // where the node's name server listens
	virtual           map[place]*flowTarget
	node              map[place]*flowTarget // by port, with the zero address
	local             func(netip.Addr) bool
}

// place is a destination of clients.
type place struct {
	protocol uint8
	at       netip.AddrPort
}

// flowTarget describes where flows to a place may end.
type flowTarget struct {
	open           bool                    // rules redirect new flows
	exceptLoopback bool                    // but not those to loopback addresses
	backends       map[netip.AddrPort]bool // those that serve or drain
}

// flow is the relevant part of a flow: the client's destination, and the address that answers.
type flow struct {
	protocol uint8
	to, from netip.AddrPort
	marked   bool // with rik's mark
}

// newFlows returns flows without the function local, which the caller must set.
func newFlows(in Input, all []servicePort) *flows {
	f := &flows{virtual: map[place]*flowTarget{}, node: map[place]*flowTarget{}}
	if !in.active() {
		return f
	}
	f.names = netip.AddrPortFrom(in.Facts.gateway(), namePort)
	f.answers = netip.AddrPortFrom(in.Facts.gateway(), in.Facts.NamePort)
	f.cluster, f.services = in.Snapshot.Settings.ClusterCIDR, in.Snapshot.Settings.ServiceCIDR
	for _, x := range all {
		number := ipProtocol(x.protocol)
		if number == 0 {
			continue
		}
		g := &flowTarget{open: len(x.ready) > 0, exceptLoopback: x.exceptLoopback, backends: map[netip.AddrPort]bool{}}
		for _, some := range [][]backend{x.ready, x.draining} {
			for _, b := range some {
				g.backends[b.to] = true
			}
		}
		for _, a := range x.virtual {
			f.virtual[place{number, netip.AddrPortFrom(a, x.port)}] = g
		}
		if x.node {
			f.node[place{number, netip.AddrPortFrom(netip.Addr{}, x.port)}] = g
		}
	}
	return f
}

// ipProtocol returns the protocol number, or 0 for protocols whose flows are left alone.
func ipProtocol(p rikv1alpha1.Protocol) uint8 {
	switch p {
	case rikv1alpha1.ProtocolUDP:
		return unix.IPPROTO_UDP
	case rikv1alpha1.ProtocolSCTP:
		return unix.IPPROTO_SCTP
	default:
		return 0
	}
}

// stale reports whether the kernel must forget the flow.
func (f *flows) stale(x flow) bool {
	if x.protocol != unix.IPPROTO_UDP && x.protocol != unix.IPPROTO_SCTP {
		return false
	}
	redirected := x.to != x.from
	if x.to == f.names && x.protocol == unix.IPPROTO_UDP {
		return x.from != f.answers
	}
	if f.services.Contains(x.to.Addr()) {
		g := f.virtual[place{x.protocol, x.to}]
		return g == nil || redirected && !g.backends[x.from] || !redirected && g.open
	}
	g := f.node[place{x.protocol, netip.AddrPortFrom(netip.Addr{}, x.to.Port())}]
	switch {
	case g == nil:
		// The port was exposed once, and now is not. Flows that other programs redirect are left
		// alone.
		return redirected && (x.marked || f.cluster.Contains(x.from.Addr()) && f.local(x.to.Addr()))
	case !f.local(x.to.Addr()):
		return false
	case g.exceptLoopback && x.to.Addr().IsLoopback():
		return redirected
	default:
		return redirected && !g.backends[x.from] || !redirected && g.open
	}
}

// MatchConntrackFlow implements the filter of package netlink.
func (f *flows) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	to, ok := netip.AddrFromSlice(c.Forward.DstIP)
	from, ok2 := netip.AddrFromSlice(c.Reverse.SrcIP)
	return ok && ok2 && f.stale(flow{
		protocol: c.Forward.Protocol,
		to:       netip.AddrPortFrom(to.Unmap(), c.Forward.DstPort),
		from:     netip.AddrPortFrom(from.Unmap(), c.Reverse.SrcPort),
		marked:   c.Mark&markBit != 0,
	})
}

// sum returns a value that changes whenever a flow may have become stale.
func (f *flows) sum() uint64 {
	total := add(0, f.answers)
	for _, all := range []map[place]*flowTarget{f.virtual, f.node} {
		for p, g := range all {
			one := add(uint64(p.protocol), p.at)
			if g.open {
				one++
			}
			if g.exceptLoopback {
				one += 2
			}
			// Use sums, because maps have no order.
			var ends uint64
			for b := range g.backends {
				ends += add(one, b)
			}
			total += one*31 + ends
		}
	}
	return total
}

func add(start uint64, at netip.AddrPort) uint64 {
	h := fnv.New64a()
	raw := binary.BigEndian.AppendUint64(nil, start)
	if at.Addr().IsValid() {
		raw = append(raw, at.Addr().AsSlice()...)
	}
	raw = binary.BigEndian.AppendUint16(raw, at.Port())
	_, _ = h.Write(raw) // never an error
	return h.Sum64()
}

// forget removes the stale flows from the kernel and returns their number.
func (f *flows) forget() (uint, error) {
	n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f)
	if err != nil {
		return n, fmt.Errorf("removing connection tracking entries of removed endpoints: %w", err)
	}
	return n, nil
}

// localAddresses returns a function that reports whether an address belongs to this machine. It
// uses the addresses of the calling thread's namespace.
func localAddresses() (func(netip.Addr) bool, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("reading this machine's addresses: %w", err)
	}
	own := map[netip.Addr]bool{}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return func(a netip.Addr) bool { return own[a] || a.IsLoopback() }, nil
}
