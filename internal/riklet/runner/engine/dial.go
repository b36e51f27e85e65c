package engine

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/netns"
)

// Running is an instance as it was last published.
type Running struct {
	Instance instance.Instance
	// PID is the PID of its supervisor. It is 0 if the instance has none.
	PID int
	// Address is its address. It is empty if the instance has none.
	Address string
}

// Namespaces returns a process in the instance's network namespace, or 0 for the node's own
// network. ok is false if the instance has no supervisor.
func (r Running) Namespaces() (pid int, ok bool) {
	switch {
	case r.PID == 0:
		return 0, false
	case r.Instance.Template.HostNetwork:
		return 0, true
	default:
		return r.PID, true
	}
}

// Loopback is the first address to try inside an instance.
const Loopback = "127.0.0.1"

// DialNetwork connects to a TCP port in the instance's network namespace. It tries the loopback
// addresses first and then the instance's address, because a server may listen on only one of
// them.
func (r Running) DialNetwork(ctx context.Context, port int32) (net.Conn, error) {
	pid, ok := r.Namespaces()
	if !ok {
		return nil, instance.ErrNotRunning
	}
	addresses := []string{Loopback, "::1"}
	if r.Address != "" {
		addresses = append(addresses, r.Address)
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
