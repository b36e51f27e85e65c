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

// Verdicts of a filter, see TC_ACT_OK and TC_ACT_SHOT in linux/pkt_cls.h.
const (
	pass = 0
	drop = 2
)

// Lengths of headers and places of fields in an Ethernet frame: RFC 894, 791 and 826.
const (
	ipv4Frame = 34
	arpFrame  = 42

	atSource     = 6 // the sender's hardware address
	atType       = 12
	atIPv4Source = 26
	atARPKind    = 16 // the protocol, then the lengths of its two kinds of addresses
	atARPMAC     = 22
	atARPAddress = 28
)

// genuine is the program that a frame of an instance must pass: it comes from the
// instance's own hardware and IPv4 addresses, and ARP tells of no others. Nothing else
// is let through: a guest's kernel, or who may open raw sockets, would take the place of
// another instance or of the gateway. A tag of a VLAN is gone by the time that the
// program sees a frame; one within another is dropped.
func genuine(address netip.Addr) []bpf.Instruction {
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
		// What is read beyond the end would end the program with 0, which is to pass.
		atLeast(ipv4Frame),
		field(atSource, 4, high), field(atSource+4, 2, low),
		[]bpf.Instruction{
			bpf.LoadAbsolute{Off: atType, Size: 2},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: uint8(len(arp))}, //nolint:gosec // some twenty
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

// must drops the frame unless what was loaded is the value.
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

// assemble gives a program as the kernel takes it: struct sock_filter, one after the
// other.
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

// instruction is the size of one, in bytes.
const instruction = 8

// ingress is what filters of incoming frames hang on, see tc(8).
var ingress = netlink.MakeHandle(0xffff, 0)

// gate makes the place for guard. On a device that is up the kernel waits until nobody
// uses it any more, so it comes early.
func (b *Bridge) gate(link netlink.Link) error {
	qdisc := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Handle: ingress, Parent: netlink.HANDLE_INGRESS,
	}}
	if err := b.handle.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding an ingress to %s (has the kernel CONFIG_NET_SCH_INGRESS?): %w", link.Attrs().Name, err)
	}
	return nil
}

// guard has the kernel drop what an instance forges, where it comes in: before the
// bridge, and before the node. For the first filter behind a gate the kernel waits for
// those who used the place before, unless some milliseconds went by since it was made;
// many that come at once wait together. See tc-bpf(8); netlink's own filters know only
// programs of the other kind, which need the system call bpf(2).
func (b *Bridge) guard(link netlink.Link, address netip.Addr) error {
	code, err := assemble(genuine(address))
	if err != nil {
		return err
	}
	// Without NLM_F_EXCL it replaces one that is there.
	request := b.request(unix.RTM_NEWTFILTER, unix.NLM_F_ACK|unix.NLM_F_CREATE)
	request.AddData(&nl.TcMsg{
		Family: nl.FAMILY_ALL, Ifindex: int32(link.Attrs().Index), Handle: 1, Parent: ingress, //nolint:gosec // indexes are 31 bits
		Info: netlink.MakeHandle(1, nl.Swap16(unix.ETH_P_ALL)),
	})
	request.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("bpf")))
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_BPF_OPS_LEN, nl.Uint16Attr(uint16(len(code)/instruction))) //nolint:gosec // some forty
	options.AddRtAttr(nl.TCA_BPF_OPS, code)
	options.AddRtAttr(nl.TCA_BPF_FLAGS, nl.Uint32Attr(nl.TCA_BPF_FLAG_ACT_DIRECT))
	request.AddData(options)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("filtering what comes from %s (has the kernel CONFIG_NET_CLS_BPF?): %w", link.Attrs().Name, err)
	}
	return nil
}

// guarded tells whether guard was done.
func (b *Bridge) guarded(link netlink.Link, address netip.Addr) (bool, error) {
	code, err := assemble(genuine(address))
	if err != nil {
		return false, err
	}
	filters, err := retried(func() ([][]byte, error) {
		request := b.request(unix.RTM_GETTFILTER, unix.NLM_F_DUMP)
		request.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(link.Attrs().Index), Parent: ingress}) //nolint:gosec // as above
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

// request is one over the bridge's own socket.
func (b *Bridge) request(kind, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(kind, flags)
	r.Sockets = b.sockets
	return r
}

// neighbor is the knowledge of who is behind a device, the bridge or an instance's
// own. It is permanent: no ARP changes it, and none is needed.
func neighbor(device int, address netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: device, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
		IP: net.IP(address.AsSlice()), HardwareAddr: MAC(address),
	}
}

// sticky is NTF_STICKY of linux/neighbor.h.
const sticky = 0x40

// station is the bridge's knowledge of where an instance is. Who is never asked for by
// ARP may be silent for long; without it the bridge would forget where it is, and send
// what is for one to all. Nobody else's frames move it.
func station(port int, address netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: port, Family: unix.AF_BRIDGE, HardwareAddr: MAC(address),
		Flags: netlink.NTF_MASTER | sticky, State: netlink.NUD_NOARP, // bridge(8): static sticky
	}
}

// place tells node and bridge where an instance is.
func (b *Bridge) place(port netlink.Link, bridge int, address netip.Addr) error {
	return errors.Join(
		b.handle.NeighSet(station(port.Attrs().Index, address)),
		b.handle.NeighSet(neighbor(bridge, address)),
	)
}

// forget takes the node's knowledge of an instance away. The bridge's goes with the port.
func (b *Bridge) forget(port netlink.Link) error {
	_, address, ok := readAlias(b.name, port.Attrs().Alias)
	if bridge := port.Attrs().MasterIndex; ok && bridge != 0 {
		return b.unlearn(neighbor(bridge, address))
	}
	return nil
}

func (b *Bridge) unlearn(n *netlink.Neigh) error {
	if err := b.handle.NeighDel(n); err != nil && !errors.Is(err, unix.ENOENT) && !isNotFound(err) {
		return fmt.Errorf("forgetting the neighbor %s: %w", n.IP, err)
	}
	return nil
}

// known is what node and bridge know for good.
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
		return k, fmt.Errorf("listing the stations of %s: %w", b.name, err)
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

// strangers are the permanent neighbors that are no instance's: what an agent that was
// killed in the middle leaves.
func (k known) strangers(ports []Port) (list []netlink.Neigh) {
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
