package session

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
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

// dialed opens a session to a TCP server that runs serve once. The messages of the node arrive on
// the channel.
func dialed(t *testing.T, serve func(*net.TCPConn)) (*Mux, <-chan *nodev1.StreamData) {
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
		defer conn.Close() //nolint:errcheck // a test's
		serve(conn.(*net.TCPConn))
	}()
	sent := make(chan *nodev1.StreamData, 4096)
	driver := listening{address: listener.Addr().String()}
	m := New(t.Context(), Config{
		Resolve: func(string) (instance.Driver, string, bool) { return driver, "", true },
		Send:    func(d *nodev1.StreamData) error { sent <- d; return nil },
		Logger:  slog.New(slog.DiscardHandler),
	})
	t.Cleanup(func() {
		m.Close()
		_ = listener.Close()
		<-served
	})
	m.Open(&nodev1.OpenStream{Stream: 1, Session: &nodev1.OpenStream_Port{Port: &nodev1.PortSession{Port: 80}}})
	return m, sent
}

// until reads the node's messages, grants credit for data, and returns the first message that
// last accepts.
func until(t *testing.T, m *Mux, sent <-chan *nodev1.StreamData, data io.Writer, last func(*nodev1.StreamData) bool) *nodev1.StreamData {
	t.Helper()
	deadline := time.After(timeout)
	for {
		select {
		case d := <-sent:
			if n := len(d.GetData()); n > 0 {
				_, _ = data.Write(d.GetData())
				m.Data(&nodev1.StreamData{Stream: 1, Credit: int64(n)})
			}
			if last(d) {
				return d
			}
		case <-deadline:
			t.Fatal("the node does not answer")
		}
	}
}

func closed(d *nodev1.StreamData) bool { return d.GetClosed() }

// TestPortHalfClose checks that a client that has finished sending still receives the whole
// answer, and that an instance that has finished sending still receives the client's data.
func TestPortHalfClose(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	m, sent := dialed(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "hello")
		_ = c.CloseWrite()
		text, _ := io.ReadAll(c)
		seen <- string(text)
	})
	var got bytes.Buffer
	until(t, m, sent, &got, (*nodev1.StreamData).GetEndOfInput)
	if got.String() != "hello" {
		t.Errorf("before its end the instance said %q", got.String())
	}
	m.Data(&nodev1.StreamData{Stream: 1, Data: []byte("and good"), Credit: 1})
	m.Data(&nodev1.StreamData{Stream: 1, Data: []byte("bye"), EndOfInput: true})
	if text := <-seen; text != "and goodbye" {
		t.Errorf("after its own end the instance heard %q", text)
	}
	if last := until(t, m, sent, io.Discard, closed); last.GetError() != "" {
		t.Errorf("the session ended with %v, want a good end", last)
	}
}

// TestPortEchoesMuch sends more than any window holds, in both directions at once.
func TestPortEchoesMuch(t *testing.T) {
	t.Parallel()
	m, sent := dialed(t, func(c *net.TCPConn) {
		_, _ = io.Copy(c, c)
		_ = c.CloseWrite()
	})
	const total = 8 << 20
	random := rand.NewChaCha8([32]byte{1})
	want, got := sha256.New(), sha256.New()
	// The test tracks the controller's credit as the controller does.
	credit, left := int64(Window), total
	chunk := make([]byte, 16<<10)
	for left > 0 {
		if credit < int64(len(chunk)) {
			d := until(t, m, sent, got, func(d *nodev1.StreamData) bool { return d.GetCredit() > 0 })
			credit += d.GetCredit()
			continue
		}
		_, _ = random.Read(chunk)
		want.Write(chunk)
		m.Data(&nodev1.StreamData{Stream: 1, Data: bytes.Clone(chunk)})
		credit, left = credit-int64(len(chunk)), left-len(chunk)
	}
	m.Data(&nodev1.StreamData{Stream: 1, EndOfInput: true})
	if last := until(t, m, sent, got, closed); last.GetError() != "" {
		t.Errorf("the session ended with %v, want a good end", last)
	}
	if !bytes.Equal(want.Sum(nil), got.Sum(nil)) {
		t.Error("what came back is not what was sent")
	}
}

// TestPortReset checks that a connection that the instance resets ends with an error.
func TestPortReset(t *testing.T) {
	t.Parallel()
	m, sent := dialed(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 4))
		_ = c.SetLinger(0)
	})
	m.Data(&nodev1.StreamData{Stream: 1, Data: []byte("ping")})
	if last := until(t, m, sent, io.Discard, closed); !strings.Contains(last.GetError(), "reset") {
		t.Errorf("the session ended with %v, want the reset", last)
	}
}
