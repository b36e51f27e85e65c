package guestinit

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"

	"rik.dev/rik/internal/riklet/guest"
)

const (
	linkTimeout  = 2 * time.Second
	linkInterval = 5 * time.Millisecond
)

// pingGroups sets the groups that may ping without CAP_NET_RAW, because containers do not have
// it: https://www.kernel.org/doc/html/latest/networking/ip-sysctl.html
const pingGroups = "/proc/sys/net/ipv4/ping_group_range"

// lowestPort sets the lowest port on which programs without CAP_NET_BIND_SERVICE may listen. A
// microVM has only its own ports, so none need protection (same page).
const lowestPort = "/proc/sys/net/ipv4/ip_unprivileged_port_start"

// configureNetwork brings up the loopback and sets the address of each interface. It removes
// earlier addresses.
func configureNetwork(interfaces []guest.Interface) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bringing up the loopback interface: %w", err)
	}
	if err := os.WriteFile(pingGroups, []byte("0 2147483647"), 0); err != nil {
		return fmt.Errorf("allowing ping for all groups: %w", err)
	}
	if err := os.WriteFile(lowestPort, []byte("0"), 0); err != nil {
		return fmt.Errorf("allowing low ports for all users: %w", err)
	}
	taken := map[int]bool{}
	for _, i := range interfaces {
		link, err := waitForLink(i, taken)
		if err != nil {
			return err
		}
		taken[link.Attrs().Index] = true
		if err := configureLink(link, i); err != nil {
			return fmt.Errorf("configuring the interface %s: %w", i.MAC, err)
		}
	}
	return nil
}

func waitForLink(i guest.Interface, taken map[int]bool) (netlink.Link, error) {
	mac, err := net.ParseMAC(i.MAC)
	if err != nil {
		return nil, fmt.Errorf("the interface's address: %w", err)
	}
	deadline := time.Now().Add(linkTimeout)
	for {
		link, err := findLink(mac, taken)
		if err == nil || time.Now().After(deadline) {
			return link, err
		}
		time.Sleep(linkInterval)
	}
}

// findLink finds an interface by its MAC address. A machine that was restored from the snapshot
// of another one has the other's MAC address. The result is then the first interface that is not
// taken.
func findLink(mac net.HardwareAddr, taken map[int]bool) (netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing the interfaces: %w", err)
	}
	var spare netlink.Link
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 || taken[a.Index] || !isDevice(a.Name) {
			continue
		}
		if bytes.Equal(a.HardwareAddr, mac) {
			return l, nil
		}
		if spare == nil {
			spare = l
		}
	}
	if spare == nil {
		return nil, fmt.Errorf("no interface %s in this machine", mac)
	}
	return spare, nil
}

// isDevice reports whether an interface is hardware and not virtual.
func isDevice(name string) bool {
	_, err := os.Stat(filepath.Join("/sys/class/net", name, "device"))
	return err == nil
}

func configureLink(link netlink.Link, i guest.Interface) error {
	mac, err := net.ParseMAC(i.MAC)
	if err != nil {
		return err
	}
	if !bytes.Equal(link.Attrs().HardwareAddr, mac) {
		if err := errors.Join(netlink.LinkSetDown(link), netlink.LinkSetHardwareAddr(link, mac)); err != nil {
			return fmt.Errorf("setting its MAC: %w", err)
		}
	}
	if i.MTU > 0 {
		if err := netlink.LinkSetMTU(link, i.MTU); err != nil {
			return fmt.Errorf("setting its MTU to %d: %w", i.MTU, err)
		}
	}
	if err := dropAddresses(link, i.Address); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting it up: %w", err)
	}
	if i.Address.IsValid() {
		address := &netlink.Addr{IPNet: ipNet(i.Address), Flags: skipDAD(i.Address)}
		if err := netlink.AddrReplace(link, address); err != nil {
			return fmt.Errorf("adding the address %s: %w", i.Address, err)
		}
	}
	return route(link, i)
}

// skipDAD returns the address flag that skips duplicate address detection. The node has assigned
// the address only once, and it is needed immediately.
func skipDAD(p netip.Prefix) int {
	if p.Addr().Is6() {
		return 0x02 // IFA_F_NODAD
	}
	return 0
}

func dropAddresses(link netlink.Link, keep netip.Prefix) error {
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("listing its addresses: %w", err)
	}
	for _, a := range addresses {
		if a.IP.IsLinkLocalUnicast() || a.IPNet.String() == ipNet(keep).String() {
			continue
		}
		if err := netlink.AddrDel(link, &a); err != nil {
			return fmt.Errorf("removing the address %s: %w", a.IPNet, err)
		}
	}
	return nil
}

// route sets the default route. The gateway may be outside the address's own network, because
// every instance has a /32.
func route(link netlink.Link, i guest.Interface) error {
	if !i.Gateway.IsValid() {
		return nil
	}
	all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if i.Gateway.Is6() {
		all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	r := &netlink.Route{
		LinkIndex: link.Attrs().Index,
		Dst:       ipNet(all),
		Gw:        i.Gateway.AsSlice(),
		Flags:     int(netlink.FLAG_ONLINK),
	}
	if err := netlink.RouteReplace(r); err != nil {
		return fmt.Errorf("setting the route through %s: %w", i.Gateway, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	if !p.IsValid() {
		return &net.IPNet{}
	}
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
