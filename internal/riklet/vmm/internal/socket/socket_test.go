package socket

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Connect waits for a socket with a full queue until the context ends. It then returns the cause
// of the context, not the deadline of the socket.
func TestConnectToAFullQueueEndsWithTheContext(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "riksock") // a short path, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "full")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	first, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path) // uses the only place
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = first.Close() })
	why := errors.New("enough")
	for range 20 {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, why)
		_, err = Connect(ctx, path, uint32(os.Geteuid()))
		cancel()
		if !errors.Is(err, why) {
			t.Fatalf("Connect() = %v, want the context's cause", err)
		}
	}
}
