package guest_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/wire"
)

// countingConn counts the reads of the connection under a stream. On a supervisor's socket each
// read is a system call, and in a session each read takes locks.
type countingConn struct {
	net.Conn
	reads *atomic.Int64
}

func (c countingConn) Read(p []byte) (int, error) {
	c.reads.Add(1)
	return c.Conn.Read(p)
}

// TestAnswersAreReadAhead covers answers that were read byte by byte, with a system call each.
// An answer without an end used a processor for seconds.
func TestAnswersAreReadAhead(t *testing.T) {
	t.Parallel()
	const length = 64 << 10
	var reads atomic.Int64
	g := guest.New(func(context.Context) (net.Conn, error) {
		node, inside := net.Pipe()
		t.Cleanup(func() { _ = inside.Close() })
		go says("{" + strings.Repeat(" ", length) + "}\n")(inside)
		return countingConn{node, &reads}, nil
	})
	if err := g.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := reads.Load(); n > length/1024 {
		t.Errorf("an answer of %d bytes took %d reads", length, n)
	}
}

// TestFramesFollowALine checks that bytes read ahead with a line are not lost to the frames.
func TestFramesFollowALine(t *testing.T) {
	t.Parallel()
	g := guest.New(func(context.Context) (net.Conn, error) {
		node, inside := net.Pipe()
		t.Cleanup(func() { _ = inside.Close() })
		go func() {
			var text strings.Builder
			text.WriteString("{}\n")
			_ = wire.WriteFrame(&text, wire.Data, []byte("first"))
			_ = wire.WriteChunks(&text, wire.Data, []byte(strings.Repeat("x", 3*wire.Chunk)))
			_ = wire.WriteFrame(&text, wire.End, nil)
			says(text.String())(inside)
		}()
		return node, nil
	})
	conn, err := g.Dial(t.Context(), 80)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := readAll(t, conn); got != "first"+strings.Repeat("x", 3*wire.Chunk) {
		t.Errorf("%d bytes came, that begin with %.20q", len(got), got)
	}
}

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}
