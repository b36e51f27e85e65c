package guestinit

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// listenVsock listens on the port to which the node connects, if this machine has a vsock
// device.
func listenVsock(port uint32) (int, error) {
	if err := haveVsock(); err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("creating a vsock socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port})
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("listening on vsock port %d: %w", port, err)
	}
	return fd, nil
}

// haveVsock checks for a vsock device by reading the machine's CID. The address family exists
// also without a device.
func haveVsock() error {
	f, err := os.Open("/dev/vsock")
	if err != nil {
		return err
	}
	defer f.Close()
	cid, err := unix.IoctlGetUint32(int(f.Fd()), unix.IOCTL_VM_SOCKETS_GET_LOCAL_CID)
	if err != nil {
		return fmt.Errorf("reading the vsock address: %w", err)
	}
	if cid <= unix.VMADDR_CID_HOST || cid == unix.VMADDR_CID_ANY {
		return errors.New("no vsock device")
	}
	return nil
}

// serveVsock serves sessions, one after the other. It accepts only the host and refuses
// connections from processes in the guest.
func serveVsock(server *Server, listener int) error {
	for {
		fd, from, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
			continue
		}
		if err != nil {
			return fmt.Errorf("accepting a connection of the node: %w", err)
		}
		conn := os.NewFile(uintptr(fd), "vsock")
		if vm, ok := from.(*unix.SockaddrVM); !ok || vm.CID != unix.VMADDR_CID_HOST {
			_ = conn.Close()
			continue
		}
		_ = server.Serve(conn)
		_ = conn.Close()
	}
}
