package overlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"rik.dev/rik/internal/riklet/network/bridge"
)

// Look finds the link that has the node's address. It is no error if no link has the address: the
// node may be behind a NAT.
func Look(name string, address netip.Addr) (Host, error) {
	host := Host{Name: name, Address: address.Unmap()}
	if !address.IsValid() {
		return host, nil
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return host, fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range addresses {
		if prefixOf(a.IPNet).Addr() == host.Address && !a.IP.IsLoopback() {
			host.Link = a.LinkIndex
		}
	}
	if host.Link == 0 {
		return host, nil
	}
	for _, a := range addresses {
		// A subnet with one address, or an address with a peer, is not a shared link.
		if p := prefixOf(a.IPNet); a.LinkIndex == host.Link && p.Bits() < 32 && (a.Peer == nil || a.Peer.IP.Equal(a.IP)) {
			host.OnLink = append(host.OnLink, p.Masked())
		}
	}
	link, err := netlink.LinkByIndex(host.Link)
	if err != nil {
		return host, fmt.Errorf("reading the link of %s: %w", address, err)
	}
	host.LinkName, host.MTU = link.Attrs().Name, link.Attrs().MTU
	return host, nil
}

// LookBridge returns the index of the bridge of this node's instances, or 0 if there is none.
func LookBridge() (int, error) {
	link, err := netlink.LinkByName(bridge.DefaultName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("looking up %s: %w", bridge.DefaultName, err)
	}
	return link.Attrs().Index, nil
}

// prefixOf converts a network. The result is invalid if it is not IPv4.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok || !a.Unmap().Is4() {
		return netip.Prefix{}
	}
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones)
}

func netOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
