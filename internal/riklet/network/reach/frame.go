package reach

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Lengths and places in a frame: RFC 894 and 826.
const (
	arpLength = 42

	atDestination = 0
	atSource      = 6
	atType        = 12
	atFixed       = 14 // kinds and lengths of addresses
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

// fixed begins each ARP packet for IPv4 over Ethernet.
var fixed = []byte{0, 1, 8, 0, 6, 4}

// mark follows the packet, where kernels do not look. The byte after it says what the sender
// knows: deafByte that it receives nothing.
var mark = []byte("rik.1 reach")

const (
	hearsByte = 0
	deafByte  = 1
)

// question is an ARP request to one node. Its kernel answers, whatever its firewall does with
// the packets of IP: what is tested is the way of the tunnel's packets alone.
func question(from, to Peer, target netip.Addr, deaf bool) []byte {
	f := make([]byte, arpLength, arpLength+len(mark)+1)
	copy(f[atDestination:], to.MAC)
	copy(f[atSource:], from.MAC)
	binary.BigEndian.PutUint16(f[atType:], unix.ETH_P_ARP)
	copy(f[atFixed:], fixed)
	binary.BigEndian.PutUint16(f[atOperation:], request)
	copy(f[atSenderMAC:], from.MAC)
	copy(f[atSenderIP:], from.Inner.AsSlice())
	copy(f[atTargetIP:], target.AsSlice())
	said := byte(hearsByte)
	if deaf {
		said = deafByte
	}
	return append(append(f, mark...), said)
}

// received is a frame that came in.
type received struct {
	from   net.HardwareAddr
	answer bool
	deaf   bool
}

// read understands questions and answers that are for a node, and nothing else.
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
			return h, true // the kernel asks by itself
		}
		h.deaf = rest[len(mark)] == deafByte
		return h, true
	case reply:
		h.answer = bytes.Equal(f[atTargetMAC:atTargetMAC+6], self.MAC)
		return h, h.answer
	default:
		return h, false
	}
}
