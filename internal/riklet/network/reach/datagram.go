package reach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"

	"rik.dev/rik/internal/riklet/netns"
)

// Ports of the check ports. Nothing else listens in their namespaces. Requests and answers both
// leave from sendPort to listenPort. An answer therefore looks like the start of a connection,
// which a firewall that accepts only replies drops, as it drops connections to instances.
const (
	listenPort = 4954
	sendPort   = 4955
)

// Parts of a datagram: the mark, the kind, the sender's state, and a number that an answer
// repeats.
const (
	atKind         = 11 // the length of the mark
	atState        = 12
	atNumber       = 13
	datagramLength = 21
)

// datagram returns a request or an answer.
func datagram(kind byte, receivesNothing bool, number uint64) []byte {
	d := append(make([]byte, 0, datagramLength), mark...)
	state := byte(receivesByte)
	if receivesNothing {
		state = receivesNothingByte
	}
	return binary.BigEndian.AppendUint64(append(d, kind, state), number)
}

// readDatagram parses requests and answers, and rejects everything else. own is the number of this
// node's requests.
func readDatagram(d []byte, source netip.AddrPort, own uint64) (a arrival, ok bool) {
	if len(d) != datagramLength || !bytes.HasPrefix(d, mark) || source.Port() != sendPort {
		return a, false
	}
	a.source = source.Addr().Unmap()
	a.from, a.number = a.source.String(), binary.BigEndian.Uint64(d[atNumber:])
	switch d[atKind] {
	case request:
		a.receivesNothing = d[atState] == receivesNothingByte
		return a, true
	case reply:
		a.answer = true
		return a, a.number == own
	default:
		return a, false
	}
}

// datagrams is the way between check ports.
type datagrams struct {
	namespace        *os.File
	address          netip.Addr
	listener, sender *net.UDPConn
	number           uint64
	done             chan struct{}
}

// openDatagrams opens the sockets in the check port's namespace.
func openDatagrams(v View, frames chan<- frame) (way, error) {
	if v.Namespace == nil {
		return nil, errors.New("the check port is not connected")
	}
	d := &datagrams{namespace: v.Namespace, address: v.Self.Check, number: rand.Uint64(), done: make(chan struct{})}
	err := netns.Within(v.Namespace, func() (err error) {
		if d.listener, err = listenAt(d.address, listenPort); err != nil {
			return err
		}
		if d.sender, err = listenAt(d.address, sendPort); err != nil {
			_ = d.listener.Close()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listening at the check port: %w", err)
	}
	go d.receive(frames)
	return d, nil
}

func listenAt(address netip.Addr, port uint16) (*net.UDPConn, error) {
	return net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, port)))
}

// receive returns when the socket is closed.
func (d *datagrams) receive(frames chan<- frame) {
	defer close(d.done)
	for {
		buffer := make([]byte, datagramLength+1)
		n, source, err := d.listener.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the kernel reports each error once
		}
		select {
		case frames <- frame{from: d, data: buffer[:n], source: source}:
		default:
		}
	}
}

func (d *datagrams) matches(v View) bool {
	return v.Namespace == d.namespace && v.Self.Check == d.address
}

func (d *datagrams) ask(_ View, to Peer, receivesNothing bool) error {
	return d.send(to.Check, datagram(request, receivesNothing, d.number))
}

func (d *datagrams) read(_ View, f frame) (arrival, bool) {
	return readDatagram(f.data, f.source, d.number)
}

func (d *datagrams) answer(a arrival) error {
	return d.send(a.source, datagram(reply, false, a.number))
}

func (d *datagrams) send(to netip.Addr, data []byte) error {
	_, err := d.sender.WriteToUDPAddrPort(data, netip.AddrPortFrom(to, listenPort))
	return err
}

func (d *datagrams) close() {
	_ = errors.Join(d.listener.Close(), d.sender.Close())
	<-d.done
}
