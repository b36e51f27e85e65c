package access

import (
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"time"

	"rik.dev/rik/internal/rikctl/config"
)

// dialTimeout bounds the attempt to connect to one of several servers.
const dialTimeout = 3 * time.Second

// dialAny returns a function that connects to the first server of a cluster that accepts the
// connection. All servers answer requests alike, so a client need not know which one it is.
func dialAny(c config.Cluster) func(ctx context.Context, network, address string) (net.Conn, error) {
	first := hostPort(c.Server)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		addresses := []string{address}
		if address == first { // and not a proxy
			for _, server := range c.Servers {
				if other := hostPort(server); !slices.Contains(addresses, other) {
					addresses = append(addresses, other)
				}
			}
		}
		var problems []error
		for _, a := range addresses {
			conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, a)
			if err == nil {
				return conn, nil
			}
			problems = append(problems, err)
			if ctx.Err() != nil {
				break
			}
		}
		return nil, errors.Join(problems...)
	}
}

// hostPort returns the address of a URL, which is known to be valid.
func hostPort(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	if u.Port() != "" {
		return u.Host
	}
	port := "443"
	if u.Scheme == "http" {
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}
