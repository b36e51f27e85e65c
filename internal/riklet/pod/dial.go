package pod

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/netns"
)

// dialInside connects to a TCP port in the network namespace of a process; 0
// means the node's own.
func dialInside(ctx context.Context, pid int, port int32) (net.Conn, error) {
	var dialer net.Dialer
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
	if pid == 0 {
		return dialer.DialContext(ctx, "tcp", address)
	}
	namespace, err := netns.Of(pid)
	if err != nil {
		return nil, fmt.Errorf("entering the network of the instance: %w", err)
	}
	defer namespace.Close()
	var conn net.Conn
	// An address without a name is dialled by the calling goroutine.
	err = netns.Within(namespace, func() (err error) {
		conn, err = dialer.DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
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
