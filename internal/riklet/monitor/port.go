package monitor

import (
	"bufio"
	"cmp"
	"encoding/binary"
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

// Port is a port of the machine at which a process of it listens.
type Port struct {
	Protocol rikv1alpha1.Protocol
	Port     uint16
}

// Ports tells which ports the machine's own processes hold.
type Ports struct {
	dir string // as /proc/net
	// fleeting are the ports that the kernel gives to those that ask for none.
	first, last uint16
	before      map[Port]bool // as read last
}

// NewPorts reads below a directory such as /proc; its network is meant.
func NewPorts(proc string) *Ports {
	p := &Ports{dir: filepath.Join(proc, "net")}
	if text, err := os.ReadFile(filepath.Join(proc, "sys/net/ipv4/ip_local_port_range")); err == nil {
		_, _ = fmt.Sscan(string(text), &p.first, &p.last)
	}
	return p
}

// Look gives the ports, sorted. What listens at own does not count. A port that
// the kernel chose counts once it was seen twice: most belong to clients, and are
// gone by then.
func (p *Ports) Look(own netip.AddrPort) (ports []Port, err error) {
	found, ours := map[Port]bool{}, text4(own)
	for _, table := range []struct {
		name     string
		protocol rikv1alpha1.Protocol
		line     func(fields []string, own string) (uint16, bool)
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
			return nil, fmt.Errorf("looking for ports in use: %w", err)
		}
		err = errors.Join(scan(f, func(fields []string) {
			if port, ok := table.line(fields, ours); ok {
				found[Port{table.protocol, port}] = true
			}
		}), f.Close())
		if err != nil {
			return nil, fmt.Errorf("looking for ports in use: %w", err)
		}
	}
	for port := range found {
		if port.Port < p.first || port.Port > p.last || p.before[port] {
			ports = append(ports, port)
		}
	}
	slices.SortFunc(ports, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	p.before = found
	return ports, nil
}

// scan gives the fields of each line but the first, which names them.
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
	stateClosed = "07" // a UDP socket that is not bound to one peer
	stateListen = "0A"
)

// listensTCP and listensUDP read a line "sl local remote state ...".
func listensTCP(fields []string, own string) (uint16, bool) {
	if len(fields) < 4 || fields[3] != stateListen || fields[1] == own {
		return 0, false
	}
	return portOf(fields[1])
}

func listensUDP(fields []string, own string) (uint16, bool) {
	if len(fields) < 4 || fields[3] != stateClosed || fields[1] == own {
		return 0, false
	}
	return portOf(fields[1])
}

// text4 is how these tables write an IPv4 address: as a number in the machine's
// own order.
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

// listensSCTP reads a line "endpoint socket style state bucket port ...".
func listensSCTP(fields []string, _ string) (uint16, bool) {
	if len(fields) < 6 || fields[3] != "10" { // SCTP_SS_LISTENING
		return 0, false
	}
	n, err := strconv.ParseUint(fields[5], 10, 16)
	return uint16(n), err == nil && n != 0
}
