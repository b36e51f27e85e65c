package reach

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// frame is one that a socket received.
type frame struct {
	from *socket
	data []byte
}

// socket sends and receives the ARP packets of one link.
type socket struct {
	index int
	file  *os.File
	done  chan struct{}
}

// open gives a socket that passes on what it receives, and drops it while nobody takes it.
func open(index int, frames chan<- frame) (*socket, error) {
	// Without a protocol it receives nothing before it is bound to the link.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: network16(unix.ETH_P_ARP), Ifindex: index}); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	s := &socket{index: index, file: os.NewFile(uintptr(fd), "packet"), done: make(chan struct{})} //nolint:gosec // a descriptor
	go s.receive(frames)
	return s, nil
}

// network16 is a number in the order of the network, as the kernel wants it here.
func network16(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// receive ends when the socket is closed.
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
		// The link went down: the next round looks whether there is another.
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

// close returns when receive has ended.
func (s *socket) close() {
	_ = s.file.Close()
	<-s.done
}
