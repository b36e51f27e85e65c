package scheduling

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// silence is the time without traffic after which the connection is probed, and the timeout of that
// probe.
const silence = 10 * time.Second

// Address is where a scheduler in another process listens.
type Address struct {
	// HostPort is host:port.
	HostPort string
	// Host is the name to verify in the scheduler's certificate.
	Host string
}

// ParseAddress parses the SCHEDULER_URL of the published papers. It ignores the scheme, because the
// connection always uses TLS.
func ParseAddress(raw string) (Address, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return Address{}, errors.Join(fmt.Errorf("%q does not have the form https://localhost:4996", raw), err)
	}
	a := Address{HostPort: u.Host}
	if u.Port() == "" {
		a.HostPort = net.JoinHostPort(u.Hostname(), strconv.Itoa(rikv1alpha1.PortScheduler))
	}
	if a.Host, _, err = net.SplitHostPort(a.HostPort); err != nil {
		return Address{}, err
	}
	return a, nil
}

// Dialer returns a Dial for a scheduler in another process.
func Dialer(a Address, config *tls.Config) func(context.Context) (*grpc.ClientConn, error) {
	return func(context.Context) (*grpc.ClientConn, error) {
		return grpc.NewClient(a.HostPort,
			grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithNoProxy(),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: silence, Timeout: silence}))
	}
}
