package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/network/bridge"
)

// Apply applies the plan in the network namespace of the calling thread, and returns how many
// changes it made. If one part fails, it still applies the others. Applying the zero plan removes
// everything.
func Apply(p Plan) (changes int, err error) {
	k := &kernel{}
	index, err := k.device(p.Tunnel)
	if err != nil {
		k.failed(err)
	}
	if index != 0 {
		k.failed(k.inner(index, p.Tunnel))
		k.failed(k.neighbors(index, p.Tunnel))
		k.failed(k.forwarding(index, p.Tunnel))
	}
	k.failed(k.routes(routes(p, index)))
	return k.changes, errors.Join(k.errs...)
}

// kernel applies changes and counts them.
type kernel struct {
	changes int
	errs    []error
}

func (k *kernel) failed(err error) {
	if err != nil {
		k.errs = append(k.errs, err)
	}
}

// did counts a change that succeeded.
func (k *kernel) did(err error) error {
	if err == nil {
		k.changes++
	}
	return err
}

// dumpTries bounds how often a list is requested again because it changed during the dump.
const dumpTries = 10

func dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpTries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// device creates the tunnel device and returns its index. If no tunnel is wanted, it removes the
// device and returns 0.
func (k *kernel) device(want *Tunnel) (index int, err error) {
	link, err := netlink.LinkByName(Device)
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		return 0, fmt.Errorf("looking up %s: %w", Device, err)
	}
	if link != nil {
		vxlan, ok := link.(*netlink.Vxlan)
		if (!ok || vxlan.VxlanId != VNI) && want == nil {
			return 0, nil // not rik's
		}
		if !ok || vxlan.VxlanId != VNI {
			return 0, fmt.Errorf("rik did not create the link %s: remove it with \"ip link delete %s\"", Device, Device)
		}
		if want != nil && same(vxlan, want) {
			return link.Attrs().Index, k.settings(link, want)
		}
		// Most settings of a VXLAN device cannot be changed.
		if err := k.did(netlink.LinkDel(link)); err != nil {
			return 0, fmt.Errorf("removing %s: %w", Device, err)
		}
	}
	if want == nil {
		return 0, nil
	}
	return k.create(want)
}

func same(have *netlink.Vxlan, want *Tunnel) bool {
	return have.Port == Port && !have.Learning && have.VtepDevIndex == 0 && addrOf(have.SrcAddr) == want.Local &&
		len(have.Group) == 0 && bytes.Equal(have.HardwareAddr, want.MAC)
}

func (k *kernel) create(want *Tunnel) (int, error) {
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU, attributes.HardwareAddr = Device, want.MTU, want.MAC
	link := &netlink.Vxlan{LinkAttrs: attributes, VxlanId: VNI, Port: Port}
	if want.Local.IsValid() {
		link.SrcAddr = want.Local.AsSlice()
	}
	if err := k.did(netlink.LinkAdd(link)); err != nil {
		return 0, fmt.Errorf("creating %s (VXLAN %d on UDP port %d): %w", Device, VNI, Port, portTaken(err))
	}
	return link.Index, k.settings(link, want)
}

// settings applies the settings that can be changed on an existing device. Replies to packets
// from a tunnel may leave directly, if another node has different links. Therefore rp_filter is
// loose, so that the kernel does not drop such packets as spoofed.
func (k *kernel) settings(link netlink.Link, want *Tunnel) error {
	for _, s := range []struct{ path, value string }{
		{"/proc/sys/net/ipv4/conf/" + Device + "/rp_filter", "2"},
		{"/proc/sys/net/ipv6/conf/" + Device + "/disable_ipv6", "1"},
	} {
		if err := k.sysctl(s.path, s.value); err != nil {
			return err
		}
	}
	if link.Attrs().MTU != want.MTU {
		if err := k.did(netlink.LinkSetMTU(link, want.MTU)); err != nil {
			return fmt.Errorf("setting the MTU of %s to %d: %w", Device, want.MTU, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := k.did(netlink.LinkSetUp(link)); err != nil {
			return fmt.Errorf("setting %s up: %w", Device, portTaken(err))
		}
	}
	return nil
}

// portTaken adds the next step to the error if a process has the port of the tunnels.
func portTaken(err error) error {
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("a process of this machine listens on UDP port %d, which the tunnels need: stop it, or let it listen on another port: %w", Port, err)
	}
	return err
}

// sysctl writes a setting. It skips settings that the kernel does not have, such as those of
// IPv6.
func (k *kernel) sysctl(path, value string) error {
	have, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(bytes.TrimSpace(have)) == value {
		return nil
	}
	if err := k.did(os.WriteFile(path, []byte(value), 0o644)); err != nil {
		return fmt.Errorf("setting %s: %w", path, err)
	}
	return nil
}

// inner sets the address of the tunnel device, and removes other addresses.
func (k *kernel) inner(index int, want *Tunnel) error {
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index, Name: Device}}
	have, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("listing the addresses of %s: %w", Device, err)
	}
	address := netip.PrefixFrom(want.Inner, want.Inner.BitLen())
	found := false
	for _, a := range have {
		if prefixOf(a.IPNet) == address {
			found = true
			continue
		}
		if err := k.did(netlink.AddrDel(link, &a)); err != nil {
			return fmt.Errorf("removing the address %s from %s: %w", a.IPNet, Device, err)
		}
	}
	if found {
		return nil
	}
	if err := k.did(netlink.AddrAdd(link, &netlink.Addr{IPNet: netOf(address)})); err != nil {
		return fmt.Errorf("adding to %s the address %s: %w", Device, address, err)
	}
	return nil
}

// neighbors sets the MAC addresses of the other ends.
func (k *kernel) neighbors(index int, want *Tunnel) error {
	entries := map[string]netlink.Neigh{}
	for _, e := range want.Ends {
		entries[e.Inner.String()] = netlink.Neigh{
			LinkIndex: index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST,
			IP: e.Inner.AsSlice(), HardwareAddr: e.MAC,
		}
	}
	return k.table(index, netlink.FAMILY_V4, entries, func(n netlink.Neigh) string { return n.IP.String() })
}

// forwarding sets the node address for each MAC address.
func (k *kernel) forwarding(index int, want *Tunnel) error {
	entries := map[string]netlink.Neigh{}
	for _, e := range want.Ends {
		entries[e.MAC.String()] = netlink.Neigh{
			LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
			IP: e.Outer.AsSlice(), HardwareAddr: e.MAC,
		}
	}
	return k.table(index, unix.AF_BRIDGE, entries, func(n netlink.Neigh) string { return n.HardwareAddr.String() })
}

// table makes one of the device's two tables contain exactly the given entries.
func (k *kernel) table(index, family int, want map[string]netlink.Neigh, key func(netlink.Neigh) string) error {
	have, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, family) })
	if err != nil {
		return fmt.Errorf("listing the neighbors of %s: %w", Device, err)
	}
	var errs []error
	for _, n := range have {
		w, wanted := want[key(n)]
		if wanted && n.State&netlink.NUD_PERMANENT != 0 && addrOf(n.IP) == addrOf(w.IP) && bytes.Equal(n.HardwareAddr, w.HardwareAddr) {
			delete(want, key(n))
			continue
		}
		// Entries that the kernel learned by itself, such as an unanswered ARP request, are not
		// rik's. They expire by themselves.
		if n.State&netlink.NUD_PERMANENT == 0 {
			continue
		}
		n.LinkIndex = index
		if err := k.did(netlink.NeighDel(&n)); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("removing the neighbor %s of %s: %w", key(n), Device, err))
		}
	}
	for _, w := range want {
		if err := k.did(netlink.NeighSet(&w)); err != nil {
			errs = append(errs, fmt.Errorf("adding the neighbor %s of %s: %w", key(w), Device, err))
		}
	}
	return errors.Join(errs...)
}

// routes returns the routes of a plan. index is the tunnel device, or 0 if there is none.
func routes(p Plan, index int) map[netip.Prefix]netlink.Route {
	all := map[netip.Prefix]netlink.Route{}
	if v := p.Virtual; v != nil {
		all[v.To] = netlink.Route{
			Dst: netOf(v.To), LinkIndex: v.Link, Scope: netlink.SCOPE_LINK, Protocol: bridge.RouteProtocol, Table: unix.RT_TABLE_MAIN,
		}
	}
	for _, r := range p.Direct {
		all[r.To] = netlink.Route{
			Dst: netOf(r.To), Gw: r.Via.AsSlice(), LinkIndex: r.Link, Protocol: bridge.RouteProtocol, Table: unix.RT_TABLE_MAIN,
		}
	}
	if p.Tunnel == nil || index == 0 {
		return all
	}
	for _, e := range p.Tunnel.Ends {
		all[e.To] = netlink.Route{
			Dst: netOf(e.To), Gw: e.Inner.AsSlice(), LinkIndex: index, Protocol: bridge.RouteProtocol, Table: unix.RT_TABLE_MAIN,
			Flags: int(netlink.FLAG_ONLINK), // no machine has an address there
		}
	}
	return all
}

// routes makes rik's routes equal to want. A route of another program to the same destination is
// an error, and stays.
func (k *kernel) routes(want map[netip.Prefix]netlink.Route) error {
	have, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("listing routes: %w", err)
	}
	var errs []error
	for _, r := range have {
		to := prefixOf(r.Dst)
		w, wanted := want[to]
		switch {
		case r.Protocol != bridge.RouteProtocol && wanted:
			errs = append(errs, fmt.Errorf("the host has its own route to %s, which belongs to the cluster's addresses: %s", to, r))
			delete(want, to)
		case r.Protocol != bridge.RouteProtocol:
		case wanted && r.LinkIndex == w.LinkIndex && r.Gw.Equal(w.Gw):
			delete(want, to)
		default:
			if err := k.did(netlink.RouteDel(&r)); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("removing the route to %s: %w", to, err))
			}
		}
	}
	for to, w := range want {
		if err := k.did(netlink.RouteAdd(&w)); err != nil {
			errs = append(errs, fmt.Errorf("adding the route to %s: %w", to, err))
		}
	}
	return errors.Join(errs...)
}
