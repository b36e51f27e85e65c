package session

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/rpc/nodev1"
)

// timeout is long, for a busy machine under the race detector.
const timeout = time.Minute

// listening is a driver of which only the ports are used.
type listening struct {
	instance.Driver
	address string
}

// Dial implements instance.Driver.
func (l listening) Dial(ctx context.Context, _ string, _ int32) (io.ReadWriteCloser, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", l.address)
}

// dialed opens session 1 to a TCP server that runs serve once.
func dialed(t *testing.T, serve func(*net.TCPConn)) *controller {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		serve(conn.(*net.TCPConn))
	}()
	c, stop := serving(t, listening{address: listener.Addr().String()})
	t.Cleanup(func() {
		stop()
		_ = listener.Close()
		<-served
	})
	c.open(1, &nodev1.OpenSession{Kind: &nodev1.OpenSession_Port{Port: &nodev1.PortSession{Port: 80}}})
	return c
}

// until waits until the user of session 1 has seen something.
func (c *controller) until(what string, seen func(*user) bool) {
	c.t.Helper()
	u := c.user(1)
	for deadline := time.Now().Add(timeout); ; <-time.After(time.Millisecond) {
		var ok bool
		u.locked(func() { ok = seen(u) })
		if ok {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("no %s arrived", what)
		}
	}
}

func (c *controller) untilEnd() *nodev1.SessionEnd {
	c.t.Helper()
	c.until("end", func(u *user) bool { return u.end != nil })
	return c.user(1).end
}

// received returns the bytes that the user has received.
func (c *controller) received() (data []byte) {
	u := c.user(1)
	u.locked(func() {
		if b := u.got[nodev1.Channel_CHANNEL_STDOUT]; b != nil {
			data = bytes.Clone(b.Bytes())
		}
	})
	return data
}

// TestPortHalfClose checks that a client that has finished sending still receives the whole
// answer, and that an instance that has finished sending still receives the client's data.
func TestPortHalfClose(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	c := dialed(t, func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "hello")
		_ = conn.CloseWrite()
		text, _ := io.ReadAll(conn)
		seen <- string(text)
	})
	c.until("end of output", func(u *user) bool { return u.half })
	if got := string(c.received()); got != "hello" {
		t.Errorf("before its end the instance received %q", got)
	}
	c.send(1, nodev1.NewInput([]byte("and good")), nodev1.NewInput([]byte("bye")), nodev1.NewEndOfInput())
	if text := <-seen; text != "and goodbye" {
		t.Errorf("after its own end the instance received %q", text)
	}
	if end := c.untilEnd(); end.GetError() != "" {
		t.Errorf("the session ended with %v, want a good end", end)
	}
}

// TestPortEchoesMuchData sends more than any window holds, in both directions at once.
func TestPortEchoesMuchData(t *testing.T) {
	t.Parallel()
	c := dialed(t, func(conn *net.TCPConn) {
		_, _ = io.Copy(conn, conn)
		_ = conn.CloseWrite()
	})
	sent := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(sent)
	for piece := range slices.Chunk(sent, 16<<10) {
		c.send(1, nodev1.NewInput(piece))
	}
	c.send(1, nodev1.NewEndOfInput())
	if end := c.untilEnd(); end.GetError() != "" {
		t.Errorf("the session ended with %v, want a good end", end)
	}
	if !bytes.Equal(sent, c.received()) {
		t.Error("the received data differs from the sent data")
	}
}

// TestPortReset checks that a connection that the instance resets ends with an error.
func TestPortReset(t *testing.T) {
	t.Parallel()
	c := dialed(t, func(conn *net.TCPConn) {
		_, _ = io.ReadFull(conn, make([]byte, 4))
		_ = conn.SetLinger(0)
	})
	c.send(1, nodev1.NewInput([]byte("ping")))
	if end := c.untilEnd(); !strings.Contains(end.GetError(), "reset") {
		t.Errorf("the session ended with %v, want the reset", end)
	}
}
