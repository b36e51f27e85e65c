// Package listener is the front door: it opens the API server's port, says who has
// it if it is taken, and answers a client that speaks plain HTTP where TLS is
// expected with the URL to use instead.
package listener

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// A process that was killed may leave its ports to a child for a moment: one that
// it was making, and which lets go of them when it becomes another program.
const (
	busyTimeout  = 2 * time.Second
	busyInterval = 20 * time.Millisecond
)

// Listen opens a TCP port; port 0 lets the kernel choose one. A busy port is tried
// again for a while; then the error names its holder where this user may see it,
// and the flag that chooses another.
func Listen(ctx context.Context, address string, port int, flag string) (net.Listener, error) {
	var config net.ListenConfig
	var listener net.Listener
	var err error
	// What ends the polling is in err already.
	_ = wait.PollUntilContextTimeout(ctx, busyInterval, busyTimeout, true, func(ctx context.Context) (bool, error) {
		listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		return !errors.Is(err, unix.EADDRINUSE), nil
	})
	switch {
	case listener != nil:
		return listener, nil
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("opening port %d: %w: %s: stop it, or choose another port with %s", port, err, describe(port), flag)
	default:
		return nil, fmt.Errorf("opening port %d: %w", port, errors.Join(err, context.Cause(ctx)))
	}
}
