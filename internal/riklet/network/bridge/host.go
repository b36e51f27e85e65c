package bridge

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Host lists the addresses and routes of the node's namespace.
func (b *Bridge) Host() ([]Use, error) {
	links, err := retried(b.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing the host's devices: %w", err)
	}
	names, private := map[int]string{}, map[int]bool{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		private[l.Attrs().Index] = l.Attrs().Flags&net.FlagPointToPoint != 0
	}
	addresses, err := retried(func() ([]netlink.Addr, error) { return b.handle.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("listing the host's addresses: %w", err)
	}
	routes, err := retried(func() ([]netlink.Route, error) { return b.handle.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("listing the host's routes: %w", err)
	}
	var uses []Use
	for _, a := range addresses {
		uses = append(uses, Use{Prefix: prefixOf(a.IPNet), Device: names[a.LinkIndex], Address: true})
	}
	for _, r := range routes {
		if r.Dst != nil {
			uses = append(uses, Use{
				Prefix: prefixOf(r.Dst), Device: names[r.LinkIndex], Protocol: int(r.Protocol), CrossesGateway: private[r.LinkIndex] || crossesGateway(r),
			})
		}
	}
	return uses, nil
}

// crossesGateway reports whether a route uses a gateway or drops packets.
func crossesGateway(r netlink.Route) bool {
	switch r.Type {
	case unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT, unix.RTN_THROW:
		return true
	}
	if len(r.MultiPath) > 0 {
		return !slices.ContainsFunc(r.MultiPath, func(n *netlink.NexthopInfo) bool { return n.Gw == nil && n.Via == nil })
	}
	return r.Gw != nil || r.Via != nil
}

// LinkMTU returns the MTU of the device that has an address. That is the MTU of what the node
// sends from the address.
func (b *Bridge) LinkMTU(address netip.Addr) (int, error) {
	addresses, err := retried(func() ([]netlink.Addr, error) { return b.handle.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return 0, fmt.Errorf("listing the host's addresses: %w", err)
	}
	for _, a := range addresses {
		if prefixOf(a.IPNet).Addr() != address.Unmap() {
			continue
		}
		link, err := b.handle.LinkByIndex(a.LinkIndex)
		if err != nil {
			return 0, fmt.Errorf("reading the device of %s: %w", address, err)
		}
		return link.Attrs().MTU, nil
	}
	return 0, fmt.Errorf("no device of this host has the address %s", address)
}
