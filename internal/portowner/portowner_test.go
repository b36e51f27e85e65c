package portowner

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	datagrams, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	own, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	want := Owner{PID: os.Getpid(), Program: strings.TrimSpace(string(own))}
	for protocol, port := range map[Protocol]int{
		TCP: listener.Addr().(*net.TCPAddr).Port, UDP: datagrams.LocalAddr().(*net.UDPAddr).Port,
	} {
		if got, err := Find(protocol, port); err != nil || got != want {
			t.Errorf("Find(%s, %d) = %v, %v, want %v", protocol, port, got, err, want)
		}
	}
}

// A client of a port does not have it.
func TestFindNoClient(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := Find(TCP, conn.LocalAddr().(*net.TCPAddr).Port); !errors.Is(err, ErrFree) {
		t.Errorf("Find of a client's port = %v, %v, want ErrFree", got, err)
	}
}
