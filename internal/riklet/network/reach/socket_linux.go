package reach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// socket sends and receives the ARP packets of one link. It is the way through tunnels.
type socket struct {
	index int
	file  *os.File
	done  chan struct{}
}

// openARP opens a socket on the view's device.
func openARP(v View, frames chan<- frame) (way, error) {
	link, err := net.InterfaceByName(v.Device)
	if err != nil {
		return nil, fmt.Errorf("listening at %q: %w", v.Device, err)
	}
	s, err := open(link.Index, frames)
	if err != nil {
		return nil, fmt.Errorf("listening at %q: %w", v.Device, err)
	}
	return s, nil
}

func (s *socket) matches(v View) bool {
	link, err := net.InterfaceByName(v.Device)
	return err == nil && link.Index == s.index
}

func (s *socket) ask(v View, to Peer, receivesNothing bool) error {
	// Old kernels treat the tunnel device's own address as a broadcast address.
	for _, target := range []netip.Addr{to.Inner, to.Bridge} {
		if err := s.send(query(v.Self, to, target, receivesNothing)); err != nil {
			return err
		}
	}
	return nil
}

func (s *socket) read(v View, f frame) (arrival, bool) {
	h, ok := read(f.data, v.Self)
	return arrival{from: string(h.from), answer: h.answer, receivesNothing: h.receivesNothing}, ok
}

// answer does nothing, because the kernel answers.
func (s *socket) answer(arrival) error { return nil }

// open returns a socket that sends received frames to a channel, and drops them while the channel
// is full.
func open(index int, frames chan<- frame) (*socket, error) {
	// Without a protocol, the socket receives nothing before it is bound to the link.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: network16(unix.ETH_P_ARP), Ifindex: index}); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	s := &socket{index: index, file: os.NewFile(uintptr(fd), "packet"), done: make(chan struct{})}
	go s.receive(frames)
	return s, nil
}

// network16 returns a number in network byte order, as the kernel requires here.
func network16(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// receive returns when the socket is closed.
func (s *socket) receive(frames chan<- frame) {
	defer close(s.done)
	for {
		buffer := make([]byte, 256)
		n, err := s.file.Read(buffer)
		if n > 0 {
			select {
			case frames <- frame{from: s, data: buffer[:n]}:
			default:
			}
			continue
		}
		// The link went down. The next round checks whether there is another one.
		if err != nil && !isDown(err) {
			return
		}
	}
}

func isDown(err error) bool { return errors.Is(err, unix.ENETDOWN) }

func (s *socket) send(f []byte) error {
	_, err := s.file.Write(f)
	return err
}

// close closes the socket and waits until receive has returned.
func (s *socket) close() {
	_ = s.file.Close()
	<-s.done
}
