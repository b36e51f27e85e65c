package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Console awaits the terminal that an OCI runtime makes in a container and
// hands over through a unix socket.
type Console struct{ listener *net.UnixListener }

// NewConsole makes the socket.
func NewConsole(path string) (*Console, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("making the console socket: %w", err)
	}
	return &Console{listener: l}, nil
}

// Receive gives the master side of the terminal. It waits until deadline.
func (c *Console) Receive(deadline time.Time) (*os.File, error) {
	if err := c.listener.SetDeadline(deadline); err != nil {
		return nil, err
	}
	conn, err := c.listener.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("waiting for the terminal: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	// One descriptor is 24 bytes of control data; the name beside it is the
	// runtime's own and of no use.
	name, control := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(name, control)
	if err != nil {
		return nil, fmt.Errorf("receiving the terminal: %w", err)
	}
	return terminal(control[:n])
}

func terminal(control []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("receiving the terminal: %w", err)
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil || len(fds) != 1 {
			continue
		}
		unix.CloseOnExec(fds[0])
		// Non-blocking puts it under the runtime's poller, so that a read can
		// be ended from outside.
		if err := unix.SetNonblock(fds[0], true); err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fds[0]), "console"), nil
	}
	return nil, errors.New("the runtime handed over no terminal")
}

// Close removes the socket.
func (c *Console) Close() error { return c.listener.Close() }
