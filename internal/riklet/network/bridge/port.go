package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/netns"
)

// Port is an instance's connection, or the check port, as the kernel has it.
type Port struct {
	UID     string // empty for an incomplete connection, and checkUID for the check port
	Address netip.Addr
	Device  string
	link    netlink.Link
}

// Wire describes a connection to create.
type Wire struct {
	UID     string
	PID     int // a process in the instance's namespace
	Address netip.Addr
	Gateway netip.Addr
	MTU     int // 0: the kernel's default
}

// Ports lists the connections of this bridge.
func (b *Bridge) Ports() ([]Port, error) {
	links, err := retried(b.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing the instances' devices: %w", err)
	}
	var ports []Port
	for _, l := range links {
		attrs := l.Attrs()
		if !deviceName.MatchString(attrs.Name) || l.Type() != "veth" {
			continue
		}
		uid, address, ok := readAlias(b.name, attrs.Alias)
		if !ok && attrs.Alias != "" {
			continue // not rik's
		}
		ports = append(ports, Port{UID: uid, Address: address, Device: attrs.Name, link: l})
	}
	return ports, nil
}

// instances lists the connections without the check port.
func (b *Bridge) instances() ([]Port, error) {
	ports, err := b.Ports()
	return slices.DeleteFunc(ports, func(p Port) bool { return p.UID == checkUID }), err
}

// Attach connects an instance. If it is already connected as described, nothing changes. Any
// other device of rik with its name is replaced.
func (b *Bridge) Attach(ctx context.Context, w Wire) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	namespace, err := netns.Of(w.PID)
	if err != nil {
		return fmt.Errorf("finding the network of instance %s: %w", w.UID, err)
	}
	defer namespace.Close()
	if err := b.connect(ctx, w, namespace); err != nil {
		return fmt.Errorf("connecting instance %s: %w", w.UID, err)
	}
	return nil
}

// connect does the work of Attach for a namespace.
func (b *Bridge) connect(ctx context.Context, w Wire, namespace *os.File) error {
	if err := b.attach(w, namespace); err != nil {
		return err
	}
	return b.waitForCarrier(ctx, Device(w.UID), b.name)
}

// How long the devices may take to come up, and how often to check.
const (
	settleTimeout = 30 * time.Second
	settlePoll    = time.Millisecond
)

// waitForCarrier waits until the devices forward frames. The kernel lets a port forward some time
// after it has a carrier, up to a second. A frame sent before that would be lost, and sent again
// only a second later. Since Linux 6.9, a query of the device makes the kernel do it at once.
func (b *Bridge) waitForCarrier(ctx context.Context, devices ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleTimeout, errors.New("the device did not come up"))
	defer cancel()
	for _, name := range devices {
		for {
			link, err := b.handle.LinkByName(name)
			if err != nil {
				return fmt.Errorf("looking up %s: %w", name, err)
			}
			if link.Attrs().OperState == netlink.OperUp {
				break
			}
			if !pause.For(ctx, settlePoll) {
				return fmt.Errorf("waiting for %s (%s): %w", name, link.Attrs().OperState, context.Cause(ctx))
			}
		}
	}
	return nil
}

func (b *Bridge) attach(w Wire, namespace *os.File) error {
	link, err := b.pair(w, namespace)
	if errors.Is(err, unix.EEXIST) {
		connected, err := b.connected(w, namespace)
		if err != nil || connected {
			return err
		}
		if err := b.Detach(context.Background(), w.UID); err != nil {
			return err
		}
		link, err = b.pair(w, namespace)
		if err != nil {
			return fmt.Errorf("creating the device %s: %w", Device(w.UID), err)
		}
	} else if err != nil {
		return fmt.Errorf("creating the device %s: %w", Device(w.UID), err)
	}
	if err := b.outside(w, link); err != nil {
		return err
	}
	return netns.Within(namespace, func() error { return configure(w) })
}

// pair creates the two devices. One of them is in the instance's namespace from the start.
func (b *Bridge) pair(w Wire, namespace *os.File) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = Device(w.UID), w.MTU
	// Use one queue, which was the default before Linux 5.14. For one queue per processor the
	// kernel waits a millisecond, and only XDP needs that.
	attrs.NumTxQueues, attrs.NumRxQueues = 1, 1
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr = inside, MAC(w.Address)
	veth.PeerNamespace = netlink.NsFd(namespace.Fd())
	return veth, b.handle.LinkAdd(veth)
}

// outside sets the alias of the node's device and adds it to the bridge.
func (b *Bridge) outside(w Wire, link netlink.Link) error {
	name := link.Attrs().Name
	if err := b.handle.LinkSetAlias(link, alias(b.name, w.UID, w.Address)); err != nil {
		return fmt.Errorf("marking %s: %w", name, err)
	}
	// Before the device is up: otherwise it joins multicast groups and announces that on all
	// other ports.
	err := netns.Within(b.home, func() error {
		_, err := set(Sysctl{"net/ipv6/conf/" + name + "/disable_ipv6", "1"})
		return err
	})
	if err != nil {
		return err
	}
	if err := b.createQdisc(link); err != nil {
		return err
	}
	bridge, err := b.find()
	if err != nil {
		return err
	}
	if bridge == nil {
		return fmt.Errorf("the bridge %s does not exist any more", b.name)
	}
	if err := b.join(link, bridge.Attrs().Index, w.Address); err != nil {
		return fmt.Errorf("adding %s to %s: %w", name, b.name, err)
	}
	// Nothing was sent yet, because the instance's device is not up.
	return b.guard(link, w.Address)
}

// configure sets up the instance's device, on a thread in its namespace.
func configure(w Wire) error {
	if _, err := set(insideSysctls...); err != nil {
		return err
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByName(inside)
	if err != nil {
		return fmt.Errorf("looking up %s: %w", inside, err)
	}
	address := netip.PrefixFrom(w.Address, w.Address.BitLen())
	if err := handle.AddrAdd(link, &netlink.Addr{IPNet: netOf(address)}); err != nil {
		return fmt.Errorf("adding %s: %w", address, err)
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting %s up: %w", inside, err)
	}
	// ARP does not change the gateway's entry and is not needed.
	if err := handle.NeighSet(neighbor(link.Attrs().Index, w.Gateway)); err != nil {
		return fmt.Errorf("setting the neighbor %s: %w", w.Gateway, err)
	}
	// The gateway is in no network of the instance, so the route needs the flag onlink.
	route := netlink.Route{LinkIndex: link.Attrs().Index, Gw: w.Gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
	if err := handle.RouteAdd(&route); err != nil {
		return fmt.Errorf("adding the route through %s: %w", w.Gateway, err)
	}
	return nil
}

// connected reports whether the instance has everything that attach would create.
func (b *Bridge) connected(w Wire, namespace *os.File) (bool, error) {
	link, err := b.handle.LinkByName(Device(w.UID))
	if isNotFound(err) {
		return false, fmt.Errorf("%w: %s in the namespace of process %d", ErrForeign, inside, w.PID)
	}
	bridge, findErr := b.find()
	if err = errors.Join(err, findErr); err != nil {
		return false, err
	}
	attrs := link.Attrs()
	if bridge == nil || attrs.Flags&net.FlagUp == 0 || attrs.MasterIndex != bridge.Attrs().Index || attrs.Alias != alias(b.name, w.UID, w.Address) {
		return false, nil
	}
	complete := false
	err = netns.Within(namespace, func() (err error) {
		complete, err = configured(w, attrs.Index)
		return err
	})
	return complete, err
}

// configured reports whether configure was done for the device whose peer is given. It runs on a
// thread in the instance's namespace.
func configured(w Wire, peer int) (bool, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return false, err
	}
	defer handle.Close()
	link, err := handle.LinkByName(inside)
	if isNotFound(err) {
		return false, nil
	}
	if err != nil || link.Attrs().ParentIndex != peer {
		return false, err
	}
	// The route is the last thing that configure adds.
	routes, err := retried(func() ([]netlink.Route, error) { return handle.RouteList(link, netlink.FAMILY_V4) })
	if err != nil {
		return false, err
	}
	addresses, err := retried(func() ([]netlink.Addr, error) { return handle.AddrList(link, netlink.FAMILY_V4) })
	if err != nil {
		return false, err
	}
	return len(routes) == 1 && routes[0].Gw.Equal(w.Gateway.AsSlice()) &&
		len(addresses) == 1 && addresses[0].IP.Equal(w.Address.AsSlice()), nil
}

// Detach removes an instance's devices. It is no error if there are none.
func (b *Bridge) Detach(ctx context.Context, uid string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	link, err := b.handle.LinkByName(Device(uid))
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking up the device of instance %s: %w", uid, err)
	}
	if owner, _, ok := readAlias(b.name, link.Attrs().Alias); link.Type() != "veth" || (ok && owner != uid) || (!ok && link.Attrs().Alias != "") {
		return fmt.Errorf("%w: %s (a %s, marked %q)", ErrForeign, link.Attrs().Name, link.Type(), link.Attrs().Alias)
	}
	return b.delete(link)
}
