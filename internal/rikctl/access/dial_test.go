package access

import (
	"net"
	"testing"

	"rik.dev/rik/internal/rikctl/config"
)

// TestDialAny connects to another server while the first one refuses connections, and to no other
// server for another address, such as that of a proxy.
func TestDialAny(t *testing.T) {
	t.Parallel()
	live, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	gone, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := gone.Addr().String()
	_ = gone.Close()
	dial := dialAny(config.Cluster{Server: "https://" + dead, Servers: []string{"https://" + dead, "https://" + live.Addr().String()}})
	conn, err := dial(t.Context(), "tcp", dead)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.RemoteAddr().String(); got != live.Addr().String() {
		t.Errorf("connected to %s, want %s", got, live.Addr())
	}
	if conn, err := dial(t.Context(), "tcp", "127.0.0.1:1"); err == nil {
		_ = conn.Close()
		t.Error("an address that is not the server's leads to another server")
	}
}
