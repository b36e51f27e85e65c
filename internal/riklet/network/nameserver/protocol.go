// Package nameserver runs a node's name server as a separate process, cmd/rik-dns. It outlives
// the riklet, as containers do: DNS queries are answered while the riklet restarts, is upgraded,
// or is down. The riklet finds the process by its socket, sends it the netmap, and starts it
// again when it has ended.
//
// Package server implements the process itself. This package contains the riklet's side and the
// protocol between them.
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

// Protocol is the version of the protocol between the riklet and the process. The greeting and
// Leave are the same in all versions.
const Protocol = 1

// Descriptors that the process inherits.
const (
	ControlFD = 3 + iota // the listening unix socket
	UDPFD
	TCPFD
)

const (
	// Port is where the process listens if the port is free. Otherwise the kernel chooses a port.
	// Clients use port 53, and the rules of the node proxy redirect them. Thus another name
	// server may have port 53 of all addresses, before or after this one.
	Port = 4953
	// ClientPort is where clients send queries. Earlier versions of rik listened there.
	ClientPort = 53
)

// Settings are the process's only argument, in JSON.
type Settings struct {
	// Address is where DNS queries are answered. In a request, its port is only a preference.
	Address netip.AddrPort
	// Resolver is the path of the host's resolv.conf(5).
	Resolver string
}

// matches reports whether a process with these settings is the desired one.
func (s Settings) matches(wanted Settings) bool {
	return s.Resolver == wanted.Resolver && s.listensAt(wanted.Address.Addr())
}

// listensAt reports whether sockets at the address can be kept.
func (s Settings) listensAt(wanted netip.Addr) bool {
	return s.Address.Addr() == wanted && s.Address.Port() != ClientPort
}

// Hello is the first line on each connection, in JSON, from the process.
type Hello struct {
	Protocol int
	// Program is the file from which it was started, see [Program].
	Program  string
	PID      int
	Settings Settings
}

// Kind is the kind of a frame to the process.
type Kind byte

const (
	// Changes is a frame with changes of the netmap, encoded as NetworkChanges. The first one on a
	// connection is complete.
	Changes Kind = 1
	// Leave makes the process pass on its sockets, answer the queries that it has received, and
	// end. It answers with one byte, and the UDP and TCP descriptors.
	Leave Kind = 2
)

// maxFrame is far above the netmap of a large cluster, in bytes.
const maxFrame = 1 << 30

// WriteFrame writes one frame.
func WriteFrame(w io.Writer, kind Kind, payload []byte) error {
	if len(payload) > maxFrame {
		return fmt.Errorf("the netmap has %d bytes, and the limit is %d", len(payload), maxFrame)
	}
	frame := append(binary.BigEndian.AppendUint32([]byte{byte(kind)}, uint32(len(payload))), payload...)
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
		return 0, nil, fmt.Errorf("a frame has %d bytes, and the limit is %d", size, maxFrame)
	}
	payload := make([]byte, size)
	_, err := io.ReadFull(r, payload)
	return Kind(header[0]), payload, err
}

// Program returns an identifier of a program's file, which changes when the file is replaced.
func Program(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	at := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // on Linux it is nothing else
	return fmt.Sprintf("%d:%d:%d:%d", at.Dev, at.Ino, info.ModTime().UnixNano(), info.Size()), nil
}

// forNames returns the part of the changes that DNS answers depend on.
func forNames(c *nodev1.NetworkChanges) *nodev1.NetworkChanges {
	slim := &nodev1.NetworkChanges{
		Settings: c.GetSettings(), Services: c.GetServices(), ServicesGone: c.GetServicesGone(), EndpointsGone: c.GetEndpointsGone(),
	}
	for _, e := range c.GetEndpoints() {
		slim.Endpoints = append(slim.Endpoints, &nodev1.Endpoint{Uid: e.GetUid(), Service: e.GetService(), Name: e.GetName(), Address: e.GetAddress()})
	}
	return slim
}
