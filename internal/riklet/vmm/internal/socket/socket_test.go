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

// A socket whose queue is full is waited for until the context's end, which is what is
// said then: not that a socket had a deadline.
func TestConnectToAFullQueueEndsWithTheContext(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "riksock") // short, for the socket's path
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
	first, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path) // takes the only place
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = first.Close() })
	why := errors.New("enough")
	for range 20 {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, why)
		_, err = Connect(ctx, path, uint32(os.Geteuid())) //nolint:gosec // a user
		cancel()
		if !errors.Is(err, why) {
			t.Fatalf("Connect() = %v, want the context's cause", err)
		}
	}
}
