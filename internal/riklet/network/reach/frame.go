package reach

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Lengths and offsets in a frame: RFC 894 and 826.
const (
	arpLength = 42

	atDestination = 0
	atSource      = 6
	atType        = 12
	atFixed       = 14 // types and lengths of addresses
	atOperation   = 20
	atSenderMAC   = 22
	atSenderIP    = 28
	atTargetMAC   = 32
	atTargetIP    = 38
)

const (
	request = 1
	reply   = 2
)

// fixed is the start of each ARP packet for IPv4 over Ethernet.
var fixed = []byte{0, 1, 8, 0, 6, 4}

// mark follows the ARP packet, where kernels do not look. The byte after it contains the sender's
// state: receivesNothingByte means that it receives nothing.
var mark = []byte("rik.1 reach")

const (
	receivesByte        = 0
	receivesNothingByte = 1
)

// query returns an ARP request to one node. The node's kernel answers it even if its firewall drops
// IP packets. Thus only the path of the tunnel packets is tested.
func query(from, to Peer, target netip.Addr, receivesNothing bool) []byte {
	f := make([]byte, arpLength, arpLength+len(mark)+1)
	copy(f[atDestination:], to.MAC)
	copy(f[atSource:], from.MAC)
	binary.BigEndian.PutUint16(f[atType:], unix.ETH_P_ARP)
	copy(f[atFixed:], fixed)
	binary.BigEndian.PutUint16(f[atOperation:], request)
	copy(f[atSenderMAC:], from.MAC)
	copy(f[atSenderIP:], from.Inner.AsSlice())
	copy(f[atTargetIP:], target.AsSlice())
	said := byte(receivesByte)
	if receivesNothing {
		said = receivesNothingByte
	}
	return append(append(f, mark...), said)
}

// received is a frame that was received.
type received struct {
	from            net.HardwareAddr
	answer          bool
	receivesNothing bool
}

// read parses requests and replies to a node, and rejects all other frames.
func read(f []byte, self Peer) (h received, ok bool) {
	if len(f) < arpLength || !bytes.Equal(f[atDestination:atDestination+6], self.MAC) ||
		binary.BigEndian.Uint16(f[atType:]) != unix.ETH_P_ARP || !bytes.Equal(f[atFixed:atFixed+len(fixed)], fixed) {
		return h, false
	}
	h.from = bytes.Clone(f[atSource : atSource+6])
	if !bytes.Equal(h.from, f[atSenderMAC:atSenderMAC+6]) {
		return h, false
	}
	switch binary.BigEndian.Uint16(f[atOperation:]) {
	case request:
		rest := f[arpLength:]
		if !bytes.HasPrefix(rest, mark) || len(rest) == len(mark) {
			return h, true // the kernel sends requests by itself
		}
		h.receivesNothing = rest[len(mark)] == receivesNothingByte
		return h, true
	case reply:
		h.answer = bytes.Equal(f[atTargetMAC:atTargetMAC+6], self.MAC)
		return h, h.answer
	default:
		return h, false
	}
}
