// Package sdnotify tells the service manager of this process how far it is, with the protocol of
// sd_notify(3). Without a service manager it does nothing.
//
// The protocol is one datagram per message. Libraries for it read the address from the environment
// at each message. Every process that rik starts would inherit it there: an instance could then
// speak for the service, and runc would mount the socket into containers. Take removes it first.
package sdnotify

import (
	"context"
	"net"
	"os"
	"strings"
)

// Variable is the environment variable with the address of the service manager's socket.
const Variable = "NOTIFY_SOCKET"

// Notifier sends messages to the service manager. Its methods are safe for concurrent use, and do
// nothing on a nil Notifier. A message that cannot be sent is lost: the service works without it.
type Notifier struct{ address net.UnixAddr }

// Take returns the Notifier of this process, and removes the address from the environment. The
// caller must call it before it starts another process. It returns nil without a service manager.
func Take() *Notifier {
	address := os.Getenv(Variable)
	_ = os.Unsetenv(Variable) // fails only for invalid names
	if address == "" {
		return nil
	}
	return &Notifier{net.UnixAddr{Name: address, Net: "unixgram"}}
}

// Ready reports that the service has started. Only the first call has an effect on a unit.
func (n *Notifier) Ready() { n.send("READY=1") }

// Stopping reports that the service has begun to stop.
func (n *Notifier) Stopping() { n.send("STOPPING=1") }

// Status sets the text that "systemctl status" shows.
func (n *Notifier) Status(text string) {
	// A line break would begin another variable of the protocol.
	n.send("STATUS=" + strings.Join(strings.Fields(text), " "))
}

func (n *Notifier) send(message string) {
	if n == nil {
		return
	}
	socket, err := net.DialUnix(n.address.Net, nil, &n.address)
	if err != nil {
		return
	}
	_, _ = socket.Write([]byte(message))
	_ = socket.Close()
}

type key struct{}

// With returns a context with a Notifier.
func With(ctx context.Context, n *Notifier) context.Context { return context.WithValue(ctx, key{}, n) }

// Of returns the Notifier in ctx. It is nil if there is none.
func Of(ctx context.Context) *Notifier {
	n, _ := ctx.Value(key{}).(*Notifier)
	return n
}
