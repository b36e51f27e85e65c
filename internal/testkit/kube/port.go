package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// reservedPort is a loopback port that no other process can get: a socket is bound to it and
// never listens. A server with SO_REUSEPORT can bind to it as well. Until then, connections are
// refused.
type reservedPort struct {
	fd              int
	address, number string
}

func reservePort() (*reservedPort, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making a socket: %w", err)
	}
	err = errors.Join(
		share(fd),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reserving a port: %w", err), unix.Close(fd))
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("asking for the reserved port: %w", err), unix.Close(fd))
	}
	number := strconv.Itoa(bound.(*unix.SockaddrInet4).Port)
	return &reservedPort{fd: fd, number: number, address: net.JoinHostPort("127.0.0.1", number)}, nil
}

func share(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }

// listen returns a listener for a server in this process.
func (p *reservedPort) listen() (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = share(int(fd)) }), err)
	}}
	listener, err := config.Listen(context.Background(), "tcp", p.address)
	if err != nil {
		return nil, fmt.Errorf("listening on the reserved port: %w", err)
	}
	return listener, nil
}

func (p *reservedPort) close() error { return unix.Close(p.fd) }
