// Package nameserver runs a node's name server as a process of its own, cmd/rik-dns, which goes
// on when the riklet ends, as containers do: names are answered while the riklet restarts, is
// upgraded, or is down. The riklet finds it by its socket, feeds it the network's table, and
// starts it again when it has ended.
//
// The process itself is package server. This one holds the riklet's side and what both agree on.
package nameserver

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"

	"rik.dev/rik/internal/rpc/nodev1"
)

// Protocol is the version of what the riklet and the process say to each other. What a process
// of another version understands in any case is the greeting and Leave.
const Protocol = 1

// Descriptors that the process is started with.
const (
	ControlFD = 3 + iota // the listening unix socket
	UDPFD
	TCPFD
)

const (
	// Port is where the process listens if it can; else the kernel chooses a port. Clients ask
	// port 53, and the rules of the Node Proxy redirect them. So another name server may have
	// port 53 of all addresses, before or after this one.
	Port = 4953
	// clientPort is where clients ask. Earlier versions listened there.
	clientPort = 53
)

// Settings are the process's only argument, in JSON.
type Settings struct {
	// Address is where names are answered. When it is asked for, its port is a wish.
	Address netip.AddrPort
	// Resolver is the path of the host's resolv.conf(5).
	Resolver string
}

// suits says whether a process with these settings does what is wanted.
func (s Settings) suits(wanted Settings) bool {
	return s.Resolver == wanted.Resolver && s.listensAt(wanted.Address.Addr())
}

// listensAt says whether sockets at the address can be kept.
func (s Settings) listensAt(wanted netip.Addr) bool {
	return s.Address.Addr() == wanted && s.Address.Port() != clientPort
}

// Hello is the first line on each connection, in JSON; it comes from the process.
type Hello struct {
	Protocol int
	// Program is which file it was started from, see [Program].
	Program  string
	PID      int
	Settings Settings
}

// Kind is what a frame asks of the process.
type Kind byte

const (
	// Table brings changes of the table, encoded as a NetworkChanges. The first one on a
	// connection is a whole.
	Table Kind = 1
	// Leave has the process hand over its sockets, answer what it was asked before, and end.
	// It answers with one byte, and the descriptors of UDP and TCP.
	Leave Kind = 2
)

// maxFrame is far above the table of a large cluster, in bytes.
const maxFrame = 1 << 30

// WriteFrame writes one frame.
func WriteFrame(w io.Writer, kind Kind, payload []byte) error {
	if len(payload) > maxFrame {
		return fmt.Errorf("the table has %d bytes, more than %d", len(payload), maxFrame)
	}
	frame := append(binary.BigEndian.AppendUint32([]byte{byte(kind)}, uint32(len(payload))), payload...) //nolint:gosec // bounded above
	_, err := w.Write(frame)
	return err
}

// ReadFrame reads one frame.
func ReadFrame(r io.Reader) (Kind, []byte, error) {
	var header [5]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(header[1:])
	if size > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes, more than %d", size, maxFrame)
	}
	payload := make([]byte, size)
	_, err := io.ReadFull(r, payload)
	return Kind(header[0]), payload, err
}

// Program identifies a program's file: one that was replaced is another.
func Program(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	at := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // on Linux it is nothing else
	return fmt.Sprintf("%d:%d:%d:%d", at.Dev, at.Ino, info.ModTime().UnixNano(), info.Size()), nil
}

// forNames is what names depend on.
func forNames(c *nodev1.NetworkChanges) *nodev1.NetworkChanges {
	slim := &nodev1.NetworkChanges{
		Settings: c.GetSettings(), Services: c.GetServices(), ServicesGone: c.GetServicesGone(), EndpointsGone: c.GetEndpointsGone(),
	}
	for _, e := range c.GetEndpoints() {
		slim.Endpoints = append(slim.Endpoints, &nodev1.Endpoint{Uid: e.GetUid(), Service: e.GetService(), Name: e.GetName(), Address: e.GetAddress()})
	}
	return slim
}
