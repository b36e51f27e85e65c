package sdnotify_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rik.dev/rik/internal/sdnotify"
)

func TestMessagesReachTheServiceManager(t *testing.T) {
	address := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	t.Setenv(sdnotify.Variable, address)

	n := sdnotify.Of(sdnotify.With(t.Context(), sdnotify.Take()))
	if left, found := os.LookupEnv(sdnotify.Variable); found {
		t.Errorf("after Take, the environment has %s=%s; processes that this one starts would inherit it", sdnotify.Variable, left)
	}
	n.Status("joining:\nREADY=1")
	n.Ready()
	n.Stopping()
	for _, want := range []string{"STATUS=joining: READY=1", "READY=1", "STOPPING=1"} {
		if err := socket.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		message := make([]byte, 1024)
		size, err := socket.Read(message)
		if err != nil {
			t.Fatalf("waiting for %q: %v", want, err)
		}
		if got := string(message[:size]); got != want {
			t.Errorf("message = %q, want %q", got, want)
		}
	}
}

func TestWithoutServiceManager(t *testing.T) {
	t.Setenv(sdnotify.Variable, "")
	n := sdnotify.Take()
	if n != nil {
		t.Errorf("Take() = %v without a service manager, want nil", n)
	}
	n.Ready() // must not panic
	sdnotify.Of(context.Background()).Status("no notifier")
}

func TestServiceManagerThatIsGone(t *testing.T) {
	t.Setenv(sdnotify.Variable, filepath.Join(t.TempDir(), "gone"))
	sdnotify.Take().Ready() // must neither block nor panic
}
