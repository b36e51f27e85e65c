package bridge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Results of a filter, see TC_ACT_OK and TC_ACT_SHOT in linux/pkt_cls.h.
const (
	pass = 0
	drop = 2
)

// Lengths of headers and offsets of fields in an Ethernet frame: RFC 894, 791 and 826.
const (
	ipv4Frame = 34
	arpFrame  = 42

	atSource     = 6 // the sender's hardware address
	atType       = 12
	atIPv4Source = 26
	atARPKind    = 16 // the protocol types, then the lengths of both addresses
	atARPMAC     = 22
	atARPAddress = 28
)

// sourceFilter returns the filter program for frames from an instance. A frame passes if it comes
// from the instance's own hardware address and IPv4 address, and if its ARP fields contain no other
// sender. All other frames are dropped: otherwise a guest's kernel, or a process that may open raw
// sockets, could impersonate another instance or the gateway. The kernel removes a VLAN tag before
// the program sees the frame. A nested tag is dropped.
func sourceFilter(address netip.Addr) []bpf.Instruction {
	mac, own := MAC(address), binary.BigEndian.Uint32(address.AsSlice())
	high, low := binary.BigEndian.Uint32(mac), uint32(binary.BigEndian.Uint16(mac[4:]))
	arp := program(
		must(unix.ETH_P_ARP),
		atLeast(arpFrame),
		field(atARPKind, 4, unix.ETH_P_IP<<16|6<<8|4),
		field(atARPMAC, 4, high), field(atARPMAC+4, 2, low),
		field(atARPAddress, 4, own),
		[]bpf.Instruction{bpf.RetConstant{Val: pass}},
	)
	return program(
		// A read beyond the end of the frame would end the program with 0, which means pass.
		atLeast(ipv4Frame),
		field(atSource, 4, high), field(atSource+4, 2, low),
		[]bpf.Instruction{
			bpf.LoadAbsolute{Off: atType, Size: 2},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: uint8(len(arp))},
		},
		arp,
		field(atIPv4Source, 4, own),
		[]bpf.Instruction{bpf.RetConstant{Val: pass}},
	)
}

func program(parts ...[]bpf.Instruction) (all []bpf.Instruction) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// must drops the frame unless the loaded value equals value.
func must(value uint32) []bpf.Instruction {
	return []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipTrue: 1}, bpf.RetConstant{Val: drop}}
}

func field(offset uint32, size int, value uint32) []bpf.Instruction {
	return append([]bpf.Instruction{bpf.LoadAbsolute{Off: offset, Size: size}}, must(value)...)
}

func atLeast(length uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtLen},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: length, SkipTrue: 1}, bpf.RetConstant{Val: drop},
	}
}

// assemble returns a program in the kernel's format: a sequence of struct sock_filter.
func assemble(program []bpf.Instruction) ([]byte, error) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, err
	}
	var code []byte
	for _, i := range raw {
		code = binary.NativeEndian.AppendUint16(code, i.Op)
		code = append(code, i.Jt, i.Jf)
		code = binary.NativeEndian.AppendUint32(code, i.K)
	}
	return code, nil
}

// instruction is the size of one instruction, in bytes.
const instruction = 8

// ingress is the parent of filters of incoming frames, see tc(8).
var ingress = netlink.MakeHandle(0xffff, 0)

// createQdisc creates the ingress qdisc for guard. It is called early, because on a device that is
// up the kernel waits until no thread uses the device any more.
func (b *Bridge) createQdisc(link netlink.Link) error {
	qdisc := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Handle: ingress, Parent: netlink.HANDLE_INGRESS,
	}}
	if err := b.handle.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding an ingress qdisc to %s (the kernel needs CONFIG_NET_SCH_INGRESS): %w", link.Attrs().Name, err)
	}
	return nil
}

// guard installs the filter on a device, before the bridge and the node handle its frames. When
// the first filter is installed, the kernel waits for earlier users of the qdisc, unless some
// milliseconds have passed since its creation. Concurrent calls wait together. See tc-bpf(8). The
// filter types of package netlink support only eBPF programs, which need the system call bpf(2).
func (b *Bridge) guard(link netlink.Link, address netip.Addr) error {
	code, err := assemble(sourceFilter(address))
	if err != nil {
		return err
	}
	// Without NLM_F_EXCL it replaces an existing filter.
	request := b.request(unix.RTM_NEWTFILTER, unix.NLM_F_ACK|unix.NLM_F_CREATE)
	request.AddData(&nl.TcMsg{
		Family: nl.FAMILY_ALL, Ifindex: int32(link.Attrs().Index), Handle: 1, Parent: ingress,
		Info: netlink.MakeHandle(1, nl.Swap16(unix.ETH_P_ALL)),
	})
	request.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("bpf")))
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_BPF_OPS_LEN, nl.Uint16Attr(uint16(len(code)/instruction)))
	options.AddRtAttr(nl.TCA_BPF_OPS, code)
	options.AddRtAttr(nl.TCA_BPF_FLAGS, nl.Uint32Attr(nl.TCA_BPF_FLAG_ACT_DIRECT))
	request.AddData(options)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("adding a packet filter to %s (the kernel needs CONFIG_NET_CLS_BPF): %w", link.Attrs().Name, err)
	}
	return nil
}

// guarded reports whether the filter is installed.
func (b *Bridge) guarded(link netlink.Link, address netip.Addr) (bool, error) {
	code, err := assemble(sourceFilter(address))
	if err != nil {
		return false, err
	}
	filters, err := retried(func() ([][]byte, error) {
		request := b.request(unix.RTM_GETTFILTER, unix.NLM_F_DUMP)
		request.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(link.Attrs().Index), Parent: ingress})
		return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWTFILTER)
	})
	if err != nil {
		return false, fmt.Errorf("listing the filters of %s: %w", link.Attrs().Name, err)
	}
	for _, f := range filters {
		if bytes.Contains(f, code) {
			return true, nil
		}
	}
	return false, nil
}

// request returns a request over the bridge's own socket.
func (b *Bridge) request(kind, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(kind, flags)
	r.Sockets = b.sockets
	return r
}

// neighbor returns the neighbor entry for an address behind a device: the bridge or an instance's
// own device. It is permanent: ARP does not change it and is not needed.
func neighbor(device int, address netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: device, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
		IP: net.IP(address.AsSlice()), HardwareAddr: MAC(address),
	}
}

// sticky is NTF_STICKY of linux/neighbor.h.
const permanent = 0x40

// station returns the bridge's forwarding entry for an instance. An instance that is never
// queried by ARP may be silent for long. Without the entry, the bridge would forget its port and
// flood its frames to all ports. Frames from other ports do not move the entry.
func station(port int, address netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: port, Family: unix.AF_BRIDGE, HardwareAddr: MAC(address),
		Flags: netlink.NTF_MASTER | permanent, State: netlink.NUD_NOARP, // bridge(8): static sticky
	}
}

// place adds the entries of node and bridge for an instance.
func (b *Bridge) place(port netlink.Link, bridge int, address netip.Addr) error {
	return errors.Join(
		b.handle.NeighSet(station(port.Attrs().Index, address)),
		b.handle.NeighSet(neighbor(bridge, address)),
	)
}

// forget removes the node's neighbor entry for an instance. The bridge's entry disappears with
// the port.
func (b *Bridge) forget(port netlink.Link) error {
	_, address, ok := readAlias(b.name, port.Attrs().Alias)
	if bridge := port.Attrs().MasterIndex; ok && bridge != 0 {
		return b.deleteNeighbor(neighbor(bridge, address))
	}
	return nil
}

func (b *Bridge) deleteNeighbor(n *netlink.Neigh) error {
	if err := b.handle.NeighDel(n); err != nil && !errors.Is(err, unix.ENOENT) && !isNotFound(err) {
		return fmt.Errorf("removing the neighbor %s: %w", n.IP, err)
	}
	return nil
}

// known are the permanent entries of node and bridge.
type known struct {
	neighbors []netlink.Neigh // of the bridge, permanent ones only
	stations  []netlink.Neigh
}

func (b *Bridge) known(bridge int) (k known, err error) {
	k.neighbors, err = retried(func() ([]netlink.Neigh, error) { return b.handle.NeighList(bridge, netlink.FAMILY_V4) })
	if err != nil {
		return k, fmt.Errorf("listing the neighbors on %s: %w", b.name, err)
	}
	k.stations, err = retried(func() ([]netlink.Neigh, error) { return b.handle.NeighList(0, unix.AF_BRIDGE) })
	if err != nil {
		return k, fmt.Errorf("listing the forwarding entries of %s: %w", b.name, err)
	}
	return k, nil
}

func (k known) has(port, bridge int, address netip.Addr) bool {
	return among(k.neighbors, neighbor(bridge, address)) && among(k.stations, station(port, address))
}

func among(list []netlink.Neigh, want *netlink.Neigh) bool {
	for _, n := range list {
		if n.LinkIndex == want.LinkIndex && n.State == want.State && n.IP.Equal(want.IP) && bytes.Equal(n.HardwareAddr, want.HardwareAddr) {
			return true
		}
	}
	return false
}

// foreignNeighbors returns the permanent neighbor entries that belong to no instance. A riklet that
// was killed during an operation may leave some.
func (k known) foreignNeighbors(ports []Port) (list []netlink.Neigh) {
	here := map[netip.Addr]bool{}
	for _, p := range ports {
		here[p.Address] = true
	}
	for _, n := range k.neighbors {
		if address, ok := netip.AddrFromSlice(n.IP); ok && n.State == netlink.NUD_PERMANENT && !here[address.Unmap()] {
			list = append(list, n)
		}
	}
	return list
}
