package runner

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/netns"
)

const loopback = "127.0.0.1"

// dialInside connects to a TCP port in the network namespace of a process. pid 0 means the node's
// own namespace. It tries the loopback addresses first and then the instance's address, because a
// server may listen on only one of them.
func dialInside(ctx context.Context, pid int, address string, port int32) (net.Conn, error) {
	addresses := []string{loopback, "::1"}
	if address != "" {
		addresses = append(addresses, address)
	}
	if pid == 0 {
		return dialFirst(ctx, addresses, port)
	}
	namespace, err := netns.Of(pid)
	if err != nil {
		return nil, fmt.Errorf("entering the network of the instance: %w", err)
	}
	defer namespace.Close()
	var conn net.Conn
	err = netns.Within(namespace, func() (err error) {
		conn, err = dialFirst(ctx, addresses, port)
		return err
	})
	return conn, err
}

// dialFirst connects to the first address that answers, and otherwise returns the first error.
// The addresses are IP addresses, so the dial happens in the calling goroutine.
func dialFirst(ctx context.Context, addresses []string, port int32) (net.Conn, error) {
	var dialer net.Dialer
	var first error
	for _, address := range addresses {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(int(port))))
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// Dial connects to a port of an instance.
func (d *Driver) Dial(ctx context.Context, uid string, port int32) (io.ReadWriteCloser, error) {
	m := d.machine(uid)
	if m == nil {
		return nil, instance.ErrUnknown
	}
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("port %d is not between 1 and 65535", port)
	}
	if err := m.suspended(); err != nil {
		return nil, err
	}
	return m.engine.dial(ctx, m, port)
}
