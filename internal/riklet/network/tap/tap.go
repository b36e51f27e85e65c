// Package tap connects a microVM to its instance's network. It creates a TAP device in the
// instance's namespace and joins it to the instance's interface: every frame that arrives at one
// leaves from the other.
//
// The guest takes over the interface's hardware and IP addresses. The node's bridge, its address
// management and its rules treat the instance like any other. The TAP disappears with the
// namespace in any case. The two devices are joined by tc, see tc-mirred(8): each has an ingress
// qdisc whose only filter sends everything to the other.
package tap

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/netns"
)

// Device is the name of the TAP in the instance's namespace.
const Device = "tap0"

// Wire describes the device to create.
type Wire struct {
	// PID is a process in the instance's namespace. Interface is the instance's own device there.
	PID       int
	Interface string
	// UID and GID are those of the VMM, which may open the device.
	UID, GID uint32
	// Limits in bytes per second from the guest's perspective. 0 means no limit.
	ReceiveBytesPerSecond, TransmitBytesPerSecond int64
}

// Link is the link configuration for the guest.
type Link struct {
	MAC net.HardwareAddr
	MTU int
}

// Join creates the device and joins it to the interface. If the device exists, Join replaces it,
// so no VMM may use it any more.
func Join(w Wire) (Link, error) {
	namespace, err := netns.Of(w.PID)
	if err != nil {
		return Link{}, fmt.Errorf("finding the network of the instance: %w", err)
	}
	defer namespace.Close()
	var link Link
	err = netns.Within(namespace, func() (err error) {
		link, err = join(w)
		return err
	})
	if err != nil {
		return Link{}, fmt.Errorf("connecting %s to %s: %w", Device, w.Interface, err)
	}
	return link, nil
}

// join does the work of Join in the thread's namespace.
func join(w Wire) (Link, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return Link{}, err
	}
	defer h.Close()
	outer, err := h.LinkByName(w.Interface)
	if err != nil {
		return Link{}, fmt.Errorf("looking up %s: %w", w.Interface, err)
	}
	attrs := outer.Attrs()
	if err := remove(h); err != nil {
		return Link{}, err
	}
	inner, err := makeTAP(h, w, attrs.MTU)
	if err != nil {
		return Link{}, err
	}
	for _, way := range []struct {
		from, to netlink.Link
		limit    int64
	}{
		{outer, inner, w.ReceiveBytesPerSecond}, {inner, outer, w.TransmitBytesPerSecond},
	} {
		if err := redirect(h, way.from, way.to); err != nil {
			return Link{}, err
		}
		if err := limit(h, way.to, way.limit); err != nil {
			return Link{}, err
		}
	}
	return Link{MAC: attrs.HardwareAddr, MTU: attrs.MTU}, nil
}

// remove removes the device of an earlier VMM.
func remove(h *netlink.Handle) error {
	link, err := h.LinkByName(Device)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking up %s: %w", Device, err)
	}
	return h.LinkDel(link)
}

// makeTAP creates the device. It is persistent, because the VMM opens it later as its own user.
func makeTAP(h *netlink.Handle, w Wire, mtu int) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = Device, mtu
	tap := &netlink.Tuntap{
		LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Owner: w.UID, Group: w.GID,
		Flags: netlink.TUNTAP_VNET_HDR | netlink.TUNTAP_NO_PI | netlink.TUNTAP_ONE_QUEUE,
	}
	if err := h.LinkAdd(tap); err != nil {
		return nil, fmt.Errorf("creating %s (it needs /dev/net/tun): %w", Device, err)
	}
	for _, f := range tap.Fds {
		_ = f.Close()
	}
	link, err := h.LinkByName(Device)
	if err != nil {
		return nil, err
	}
	// The device has no IPv6 neighbors, so IPv6 is disabled on it.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+Device+"/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := errors.Join(h.LinkSetMTU(link, mtu), h.LinkSetUp(link)); err != nil {
		return nil, fmt.Errorf("setting %s up: %w", Device, err)
	}
	return link, nil
}

// redirect sends everything that arrives at one device out of the other. A u32 filter without a
// key matches every packet. matchall would be clearer, but not every kernel has that module.
func redirect(h *netlink.Handle, from, to netlink.Link) error {
	index := from.Attrs().Index
	qdisc := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
	}}
	// The filters of an earlier VMM disappear with it.
	if err := h.QdiscDel(qdisc); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("removing the ingress qdisc of %s: %w", from.Attrs().Name, err)
	}
	if err := h.QdiscAdd(qdisc); err != nil {
		return fmt.Errorf("adding an ingress qdisc to %s: %w", from.Attrs().Name, err)
	}
	filter := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: qdisc.Handle, Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		Actions: []netlink.Action{netlink.NewMirredAction(to.Attrs().Index)},
	}
	if err := h.FilterAdd(filter); err != nil {
		return fmt.Errorf("redirecting %s to %s: %w", from.Attrs().Name, to.Attrs().Name, err)
	}
	return nil
}

// The burst of a limit is the data of a tenth of a second, and at least some large frames. Data
// that would wait longer than the latency is dropped.
const (
	minBurst  = 256 << 10
	latencyMS = 50
)

// limit bounds the rate at which a device sends. 0 means no limit.
func limit(h *netlink.Handle, link netlink.Link, rate int64) error {
	if rate <= 0 {
		return nil
	}
	burst := min(max(rate/10, minBurst), math.MaxInt32)
	tbf := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       uint64(rate),
		// In ticks of the kernel's clock, see tc-tbf(8).
		Buffer: netlink.Xmittime(uint64(rate), uint32(burst)),
		Limit:  uint32(burst + rate*latencyMS/1000),
	}
	if err := h.QdiscReplace(tbf); err != nil {
		return fmt.Errorf("setting the limits of %s: %w", link.Attrs().Name, err)
	}
	return nil
}
