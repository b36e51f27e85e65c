package monitor

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Port is a port of the machine on which a process of the machine listens.
type Port struct {
	Protocol rikv1alpha1.Protocol
	Port     uint16
	// Loopback is true if the process listens only at loopback addresses, which no other machine
	// can reach. A port with listeners both there and elsewhere is listed twice.
	Loopback bool
	// Privileged is true if only root, or a process with a capability for it, can have opened the
	// port as a server.
	Privileged bool
}

// place identifies one Port.
type place struct {
	protocol rikv1alpha1.Protocol
	port     uint16
	loopback bool
}

// listener is a socket that receives what is sent to a port.
type listener struct {
	port     uint16
	loopback bool
	uid      uint64
}

// Ports reads which ports the machine's own processes use.
type Ports struct {
	dir string // as /proc/net
	// first and last bound the ports that the kernel assigns to sockets without a fixed port.
	first, last uint16
	// unprivileged is the first port that needs no capability.
	unprivileged uint16
	before       map[place]bool // as last read
}

// NewPorts returns a reader for a directory such as /proc, which belongs to one network
// namespace.
func NewPorts(proc string) *Ports {
	p := &Ports{dir: filepath.Join(proc, "net"), unprivileged: 1024}
	if text, err := os.ReadFile(filepath.Join(proc, "sys/net/ipv4/ip_local_port_range")); err == nil {
		_, _ = fmt.Sscan(string(text), &p.first, &p.last)
	}
	if text, err := os.ReadFile(filepath.Join(proc, "sys/net/ipv4/ip_unprivileged_port_start")); err == nil {
		_, _ = fmt.Sscan(string(text), &p.unprivileged)
	}
	return p
}

// Look returns the ports, sorted, without a listener at own. A port that the kernel chose counts
// after it was seen twice, because most of these belong to clients and soon disappear. For UDP,
// such a port of a client looks like one of a server. So it does not count for an unprivileged
// process, and it is not Privileged for a process of root.
func (p *Ports) Look(own netip.AddrPort) (ports []Port, err error) {
	found, ours := map[place]bool{}, text4(own) // with true for those that are privileged
	for _, table := range []struct {
		name     string
		protocol rikv1alpha1.Protocol
		line     func(fields []string, own string) (listener, bool)
	}{
		{"tcp", rikv1alpha1.ProtocolTCP, listensTCP}, {"tcp6", rikv1alpha1.ProtocolTCP, listensTCP},
		{"udp", rikv1alpha1.ProtocolUDP, listensUDP}, {"udp6", rikv1alpha1.ProtocolUDP, listensUDP},
		{"sctp/eps", rikv1alpha1.ProtocolSCTP, listensSCTP},
	} {
		f, err := os.Open(filepath.Join(p.dir, table.name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kernel has no IPv6, or no SCTP
		}
		if err != nil {
			return nil, fmt.Errorf("listing the ports in use: %w", err)
		}
		err = errors.Join(scan(f, func(fields []string) {
			if l, ok := table.line(fields, ours); ok {
				p.note(found, table.protocol, l)
			}
		}), f.Close())
		if err != nil {
			return nil, fmt.Errorf("listing the ports in use: %w", err)
		}
	}
	for at, privileged := range found {
		_, again := p.before[at]
		if !p.isEphemeral(at.port) || again {
			ports = append(ports, Port{at.protocol, at.port, at.loopback, privileged})
		}
	}
	slices.SortFunc(ports, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port), compareBool(a.Loopback, b.Loopback))
	})
	p.before = found
	return ports, nil
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

func (p *Ports) isEphemeral(port uint16) bool { return port >= p.first && port <= p.last }

// note adds a listener to the result.
func (p *Ports) note(found map[place]bool, protocol rikv1alpha1.Protocol, l listener) {
	privileged := l.uid == 0 || l.port < p.unprivileged
	if protocol == rikv1alpha1.ProtocolUDP && p.isEphemeral(l.port) {
		if !privileged {
			return
		}
		privileged = false
	}
	at := place{protocol, l.port, l.loopback}
	found[at] = found[at] || privileged
}

// scan passes the fields of each line to line, except of the header line.
func scan(r io.Reader, line func(fields []string)) error {
	lines := bufio.NewScanner(r)
	lines.Scan()
	for lines.Scan() {
		line(strings.Fields(lines.Text()))
	}
	return lines.Err()
}

// The kernel's numbers of states (include/net/tcp_states.h).
const (
	stateClosed = "07" // a UDP socket that is not connected to a peer
	stateListen = "0A"
)

// listensTCP and listensUDP parse a line "sl local remote state queues timer retransmits uid
// ...".
func listensTCP(fields []string, own string) (listener, bool) {
	return listens(fields, own, stateListen)
}

func listensUDP(fields []string, own string) (listener, bool) {
	return listens(fields, own, stateClosed)
}

func listens(fields []string, own, state string) (l listener, ok bool) {
	if len(fields) < 8 || fields[3] != state || fields[1] == own {
		return l, false
	}
	address, _, _ := strings.Cut(fields[1], ":")
	port, ok := portOf(fields[1])
	uid, err := strconv.ParseUint(fields[7], 10, 32)
	return listener{port: port, loopback: loopbackOnly(address), uid: uid}, ok && err == nil
}

// loopbackOnly parses an address in the format of these tables: words of 32 bits in the machine's
// byte order.
func loopbackOnly(text string) bool {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw)%4 != 0 {
		return false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	address, ok := netip.AddrFromSlice(raw)
	return ok && address.Unmap().IsLoopback()
}

// text4 formats an IPv4 address as these tables do: as a number in the machine's byte order.
func text4(a netip.AddrPort) string {
	if !a.Addr().Is4() {
		return ""
	}
	b := a.Addr().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(b[:]), a.Port())
}

func portOf(address string) (uint16, bool) {
	_, text, _ := strings.Cut(address, ":")
	n, err := strconv.ParseUint(text, 16, 16)
	return uint16(n), err == nil && n != 0
}

// listensSCTP parses a line "endpoint socket style state bucket port uid inode addresses".
func listensSCTP(fields []string, _ string) (l listener, ok bool) {
	if len(fields) < 8 || fields[3] != "10" { // SCTP_SS_LISTENING
		return l, false
	}
	n, err := strconv.ParseUint(fields[5], 10, 16)
	uid, err2 := strconv.ParseUint(fields[6], 10, 32)
	l = listener{port: uint16(n), uid: uid, loopback: len(fields) > 8}
	for _, text := range fields[8:] {
		a, err := netip.ParseAddr(text)
		l.loopback = l.loopback && err == nil && a.Unmap().IsLoopback()
	}
	return l, err == nil && err2 == nil && n != 0
}
