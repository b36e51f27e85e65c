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

// Console receives the terminal that an OCI runtime creates in a container and sends through a
// unix socket.
type Console struct{ listener *net.UnixListener }

// NewConsole creates the socket.
func NewConsole(path string) (*Console, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("creating the console socket: %w", err)
	}
	return &Console{listener: l}, nil
}

// Receive returns the master side of the terminal. It waits until deadline.
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
	// One descriptor needs 24 bytes of control data. The name in the message is the runtime's
	// and is not used.
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
		// In non-blocking mode the runtime's poller handles it, so a read can be interrupted.
		if err := unix.SetNonblock(fds[0], true); err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fds[0]), "console"), nil
	}
	return nil, errors.New("the runtime sent no terminal")
}

// Close removes the socket.
func (c *Console) Close() error { return c.listener.Close() }
