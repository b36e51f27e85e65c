// Package listener opens the API server's port. It reports which process uses the port if it is
// taken. It answers a client that uses plain HTTP where TLS is expected with the https URL.
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

	"rik.dev/rik/internal/portowner"
)

// A child of a killed process may hold the process's ports for a moment, between fork and exec.
// It closes them when it executes another program.
const (
	busyTimeout  = 2 * time.Second
	busyInterval = 20 * time.Millisecond
)

// Listen opens a TCP port. With port 0 the kernel chooses one. It retries for a while if the
// port is busy. The error then names the process that uses the port, if this user may see it,
// and the flag that sets another port.
func Listen(ctx context.Context, address string, port int, flag string) (net.Listener, error) {
	var config net.ListenConfig
	var listener net.Listener
	var err error
	// The error of the last attempt is in err already.
	_ = wait.PollUntilContextTimeout(ctx, busyInterval, busyTimeout, true, func(ctx context.Context) (bool, error) {
		listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		return !errors.Is(err, unix.EADDRINUSE), nil
	})
	switch {
	case listener != nil:
		return listener, nil
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("opening port %d: %w: %s: stop that process, or choose another port with %s", port, err, describe(port), flag)
	default:
		return nil, fmt.Errorf("opening port %d: %w", port, errors.Join(err, context.Cause(ctx)))
	}
}

// describe says which process listens on port. The text is followed by "stop it".
func describe(port int) string {
	owner, err := portowner.Find(portowner.TCP, port)
	if err != nil {
		return "a process of another user has it"
	}
	return owner.String() + " has it"
}
