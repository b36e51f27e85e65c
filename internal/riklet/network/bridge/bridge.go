package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/netns"
)

// ErrForeign is returned if a device has one of rik's names but was not created by rik.
var ErrForeign = errors.New("another device has the name of a device of rik")

// Bridge creates and removes the devices of the network namespace in which New was called, from
// any thread. Its methods may be called from any goroutine.
type Bridge struct {
	name   string
	home   *os.File // the namespace
	handle *netlink.Handle
	// sockets are for requests that the handle does not support.
	sockets map[int]*nl.SocketHandle
	reaper  reaper
}

// New returns a Bridge for the network namespace of the calling thread. It changes nothing. Close
// releases it.
func New(name string) (*Bridge, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("opening the node's network namespace: %w", err)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening netlink: %w", err), home.Close())
	}
	socket, err := nl.GetNetlinkSocketAt(vnetns.None(), vnetns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		handle.Close()
		return nil, errors.Join(fmt.Errorf("opening netlink: %w", err), home.Close())
	}
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	return &Bridge{name: name, home: home, handle: handle, sockets: sockets}, nil
}

// Close releases what New opened. No other method may be running. The devices stay.
func (b *Bridge) Close() error {
	b.reaper.group.Wait()
	b.handle.Close()
	for _, s := range b.sockets {
		s.Close()
	}
	return b.home.Close()
}

// ours reports whether a link is rik's bridge. It checks the hardware address, which the bridge
// has from its creation.
func ours(link netlink.Link) bool {
	mac := link.Attrs().HardwareAddr
	return link.Type() == "bridge" && bytes.HasPrefix(mac, MAC(netip.IPv4Unspecified())[:2])
}

// find returns the bridge, or nil if it does not exist.
func (b *Bridge) find() (netlink.Link, error) {
	link, err := b.handle.LinkByName(b.name)
	if isNotFound(err) {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	if err != nil {
		return nil, fmt.Errorf("looking up %s: %w", b.name, err)
	}
	if !ours(link) {
		return nil, fmt.Errorf("%w: %s (a %s); remove or rename it", ErrForeign, b.name, link.Type())
	}
	return link, nil
}

// IsConfigured reports whether the bridge exists with its address. If so, instances can be
// connected, even if other settings are not as desired.
func (b *Bridge) IsConfigured(gateway netip.Prefix) (bool, error) {
	link, err := b.find()
	if link == nil || err != nil {
		return false, err
	}
	list, err := retried(func() ([]netlink.Addr, error) { return b.handle.AddrList(link, netlink.FAMILY_V4) })
	if err != nil {
		return false, fmt.Errorf("listing the addresses of %s: %w", b.name, err)
	}
	return slices.ContainsFunc(list, func(a netlink.Addr) bool { return prefixOf(a.IPNet) == gateway }), nil
}

func isNotFound(err error) bool {
	return errors.As(err, new(netlink.LinkNotFoundError)) || errors.Is(err, unix.ENODEV)
}

// Apply creates or changes the bridge as planned, and reports whether anything changed.
func (b *Bridge) Apply(ctx context.Context, p Plan) (changed bool, err error) {
	if err := context.Cause(ctx); err != nil {
		return false, err
	}
	link, err := b.find()
	if err != nil {
		return false, err
	}
	if link == nil {
		if link, err = b.create(p); err != nil {
			return false, err
		}
		changed = true
	}
	steps := []func(netlink.Link, Plan) (bool, error){b.attributes, b.addresses, b.sysctls, b.up, b.unicast, b.members}
	for _, step := range steps {
		did, err := step(link, p)
		changed = changed || did
		if err != nil {
			return changed, fmt.Errorf("setting up %s: %w", b.name, err)
		}
	}
	return changed, nil
}

func (b *Bridge) create(p Plan) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = p.Name, p.MAC, p.MTU
	// Multicast snooping would run timers for every port, for groups that no instance joins.
	snooping := false
	link := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
	if err := b.handle.LinkAdd(link); err != nil {
		return nil, fmt.Errorf("creating %s: %w", p.Name, err)
	}
	return b.find()
}

func (b *Bridge) attributes(link netlink.Link, p Plan) (changed bool, err error) {
	if !bytes.Equal(link.Attrs().HardwareAddr, p.MAC) {
		changed, err = true, b.handle.LinkSetHardwareAddr(link, p.MAC)
	}
	if err == nil && p.MTU > 0 && link.Attrs().MTU != p.MTU {
		changed, err = true, b.handle.LinkSetMTU(link, p.MTU)
	}
	return changed, err
}

func (b *Bridge) addresses(link netlink.Link, p Plan) (changed bool, err error) {
	list, err := retried(func() ([]netlink.Addr, error) { return b.handle.AddrList(link, netlink.FAMILY_V4) })
	if err != nil {
		return false, err
	}
	there := false
	for _, a := range list {
		if prefixOf(a.IPNet) == p.Gateway {
			there = true
			continue
		}
		changed = true
		if err := b.handle.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return changed, fmt.Errorf("removing %s: %w", a.IPNet, err)
		}
	}
	if there {
		return changed, nil
	}
	if err := b.handle.AddrAdd(link, &netlink.Addr{IPNet: netOf(p.Gateway)}); err != nil {
		return changed, fmt.Errorf("adding %s: %w", p.Gateway, err)
	}
	return true, nil
}

func (b *Bridge) sysctls(_ netlink.Link, p Plan) (changed bool, err error) {
	err = netns.Within(b.home, func() (err error) {
		changed, err = set(p.Sysctls...)
		return err
	})
	return changed, err
}

func (b *Bridge) up(link netlink.Link, _ Plan) (changed bool, err error) {
	if link.Attrs().Flags&net.FlagUp != 0 {
		return false, nil
	}
	return true, b.handle.LinkSetUp(link)
}

// unicast makes the last address of the range an ordinary one, which the check port has. The kernel
// adds a broadcast route to the address each time the bridge comes up, and drops packets from it.
// Instances send no broadcasts, because each has a /32 address.
func (b *Bridge) unicast(link netlink.Link, p Plan) (changed bool, err error) {
	route := netlink.Route{
		LinkIndex: link.Attrs().Index, Dst: netOf(netip.PrefixFrom(p.Check, p.Check.BitLen())),
		Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_BROADCAST, Scope: netlink.SCOPE_LINK,
	}
	err = b.handle.RouteDel(&route)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("removing the broadcast route to %s: %w", p.Check, err)
	}
	return true, nil
}

// members repairs the instances' devices: their membership in the bridge, if another program
// removed it, their filters, and the neighbor entries of node and bridge. An earlier version of
// rik may have created the devices without filters.
func (b *Bridge) members(link netlink.Link, _ Plan) (changed bool, err error) {
	bridge := link.Attrs().Index
	// First: an instance that is connected meanwhile is among the ports then.
	known, err := b.known(bridge)
	if err != nil {
		return false, err
	}
	ports, err := b.Ports()
	if err != nil {
		return false, err
	}
	for _, p := range ports {
		if p.UID == "" || p.link.Attrs().Group == removed {
			continue
		}
		did, err := b.member(p, bridge, known)
		changed = changed || did
		if err != nil && !b.isGone(p.link) {
			return changed, fmt.Errorf("adding %s: %w", p.Device, err)
		}
	}
	for _, n := range known.foreignNeighbors(ports) {
		changed = true
		if err := b.deleteNeighbor(&n); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

func (b *Bridge) member(p Port, bridge int, known known) (changed bool, err error) {
	guarded, err := b.guarded(p.link, p.Address)
	if err != nil {
		return false, err
	}
	if !guarded {
		changed = true
		if err := b.createQdisc(p.link); err != nil {
			return changed, err
		}
		if err := b.guard(p.link, p.Address); err != nil {
			return changed, err
		}
	}
	if p.link.Attrs().MasterIndex != bridge {
		return true, b.join(p.link, bridge, p.Address)
	}
	if !known.has(p.link.Attrs().Index, bridge, p.Address) {
		return true, b.place(p.link, bridge, p.Address)
	}
	return changed, nil
}

// isGone reports whether a device was removed, which makes every operation on it fail.
func (b *Bridge) isGone(link netlink.Link) bool {
	_, err := b.handle.LinkByIndex(link.Attrs().Index)
	return isNotFound(err)
}

// join makes a device a port of the bridge.
func (b *Bridge) join(port netlink.Link, bridge int, address netip.Addr) error {
	return errors.Join(
		b.handle.LinkSetMasterByIndex(port, bridge),
		// An instance's packet to its own virtual address returns to the same port.
		b.handle.LinkSetHairpin(port, true),
		b.place(port, bridge, address),
		b.handle.LinkSetUp(port),
	)
}

// Remove removes the bridge and all devices of instances. It is no error if there are none. The
// kernel's settings stay, because other programs may rely on them by now.
func (b *Bridge) Remove(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	ports, err := b.Ports()
	if err != nil {
		return err
	}
	link, err := b.find()
	var all []netlink.Link
	if link != nil {
		all = append(all, link)
	}
	for _, p := range ports {
		all = append(all, p.link)
	}
	return errors.Join(err, b.delete(all...))
}

// maxDumps bounds how often a list is requested again because it changed during the dump.
const maxDumps = 20

func retried[T any](dump func() ([]T, error)) ([]T, error) {
	var list []T
	var err error
	for range maxDumps {
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits)
}

func netOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
