package bridge

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

func ethernet(to, from net.HardwareAddr, kind uint16, payload []byte) []byte {
	frame := append(append([]byte{}, to...), from...)
	return append(binary.BigEndian.AppendUint16(frame, kind), payload...)
}

// says is an ARP reply: an address is at a MAC.
func says(address netip.Addr, at net.HardwareAddr, to netip.Addr) []byte {
	arp := []byte{0, 1, 8, 0, 6, 4, 0, 2} // RFC 826: Ethernet, IPv4, their lengths, a reply
	arp = append(append(arp, at...), address.AsSlice()...)
	return append(append(arp, MAC(to)...), to.AsSlice()...)
}

// datagram is an IPv4 packet with a UDP datagram to a port.
func datagram(from, to netip.Addr, port uint16, text string) []byte {
	udp := []byte{0x30, 0x39}
	udp = binary.BigEndian.AppendUint16(udp, port)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(text)))
	udp = append(append(udp, 0, 0), text...) // no checksum
	ip := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	ip = append(append(ip, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(udp)))
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	return append(ip, udp...)
}

var (
	gatewayAddress = netip.MustParseAddr("10.62.7.1")
	forgerAddress  = netip.MustParseAddr("10.62.7.2")
	victimAddress  = netip.MustParseAddr("10.62.7.3")
	allAddresses   = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
)

func TestSourceFilter(t *testing.T) {
	t.Parallel()
	own, others := MAC(forgerAddress), MAC(victimAddress)
	changed := func(frame []byte, at int) []byte {
		frame[at] ^= 1
		return frame
	}
	ip := func() []byte {
		return ethernet(MAC(gatewayAddress), own, unix.ETH_P_IP, datagram(forgerAddress, gatewayAddress, 53, "x"))
	}
	arp := func() []byte {
		return ethernet(allAddresses, own, unix.ETH_P_ARP, says(forgerAddress, own, gatewayAddress))
	}
	vm, err := bpf.NewVM(sourceFilter(forgerAddress))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		frame []byte
		want  int
	}{
		"IPv4":                              {ip(), pass},
		"ARP":                               {arp(), pass},
		"ARP, padded":                       {append(arp(), make([]byte, 18)...), pass},
		"IPv4 from another's MAC":           {ethernet(MAC(gatewayAddress), others, unix.ETH_P_IP, datagram(forgerAddress, gatewayAddress, 53, "x")), drop},
		"IPv4 from another's address":       {ethernet(MAC(gatewayAddress), own, unix.ETH_P_IP, datagram(victimAddress, gatewayAddress, 53, "x")), drop},
		"IPv4 without an address":           {ethernet(allAddresses, own, unix.ETH_P_IP, datagram(netip.IPv4Unspecified(), gatewayAddress, 67, "x")), drop},
		"ARP from another's MAC":            {ethernet(allAddresses, others, unix.ETH_P_ARP, says(forgerAddress, own, gatewayAddress)), drop},
		"ARP of another's address":          {ethernet(allAddresses, own, unix.ETH_P_ARP, says(victimAddress, own, gatewayAddress)), drop},
		"ARP of the gateway's":              {ethernet(allAddresses, own, unix.ETH_P_ARP, says(gatewayAddress, own, victimAddress)), drop},
		"ARP of another's MAC":              {ethernet(allAddresses, own, unix.ETH_P_ARP, says(forgerAddress, others, gatewayAddress)), drop},
		"ARP of a MAC that ends otherwise":  {changed(arp(), atARPMAC+5), drop},
		"ARP of another protocol":           {changed(arp(), atARPKind), drop},
		"ARP with addresses of other sizes": {changed(arp(), atARPKind+2), drop},
		"a MAC that ends otherwise":         {changed(ip(), atSource+5), drop},
		"IPv6":                              {ethernet(allAddresses, own, unix.ETH_P_IPV6, make([]byte, 40)), drop},
		"a VLAN":                            {ethernet(allAddresses, own, unix.ETH_P_8021Q, append([]byte{0, 1}, ip()[12:]...)), drop},
		"an experiment":                     {ethernet(allAddresses, own, 0x88b5, make([]byte, 46)), drop},
		"IPv4 that is cut off":              {ip()[:33], drop},
		"ARP that is cut off":               {arp()[:41], drop},
		"next to nothing":                   {ip()[:14], drop},
	} {
		if got, err := vm.Run(tc.frame); got != tc.want || err != nil {
			t.Errorf("%s: the filter returned %d, %v, want %d", name, got, err, tc.want)
		}
	}
}
