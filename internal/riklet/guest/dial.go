package guest

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"rik.dev/rik/internal/riklet/guest/wire"
)

func (c *client) Dial(ctx context.Context, port int32) (net.Conn, error) {
	conn, _, err := c.call(ctx, Request{Op: OpDial, Port: port}, nil)
	if err != nil {
		return nil, err
	}
	return NewFramed(conn), nil
}

// Framed is a byte stream in frames, so that each direction can end separately. Both ends use it
// for a connection to a guest's port.
type Framed struct {
	net.Conn
	reader *wire.Reader
	ended  bool // whether End was received

	mu     sync.Mutex
	closed bool // whether End was sent
}

// NewFramed returns a byte stream over the part of a stream that follows the lines.
func NewFramed(conn net.Conn) *Framed { return &Framed{Conn: conn, reader: wire.NewReader(conn)} }

// Read may be called by one goroutine at a time.
func (f *Framed) Read(p []byte) (int, error) {
	for {
		if f.ended {
			return 0, io.EOF
		}
		if n, err := f.reader.Read(p); n > 0 || len(p) == 0 {
			return n, nil
		} else if err != nil && err != io.EOF { //nolint:errorlint // the reader's own, for the end of a frame
			return 0, err
		}
		kind, _, err := f.reader.Next()
		switch {
		case err == io.EOF: //nolint:errorlint // between frames: the stream ended without a word
			return 0, io.ErrUnexpectedEOF
		case err != nil:
			return 0, err
		case kind == wire.End:
			f.ended = true
		case kind != wire.Data:
			return 0, fmt.Errorf("%w: a frame of kind %d in a connection", ErrProtocol, kind)
		}
	}
}

// Write sends all of p, in frames that are small enough not to delay other streams.
func (f *Framed) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return 0, net.ErrClosed
	}
	for sent := 0; sent < len(p); {
		chunk := p[sent:min(len(p), sent+wire.Chunk)]
		if err := wire.WriteFrame(f.Conn, wire.Data, chunk); err != nil {
			return sent, err
		}
		sent += len(chunk)
	}
	return len(p), nil
}

// CloseWrite sends End: no more data follows.
func (f *Framed) CloseWrite() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	return wire.WriteFrame(f.Conn, wire.End, nil)
}
