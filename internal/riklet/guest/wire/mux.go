package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/yamux"
)

// Streams is the maximum number of streams of a session. Further streams are refused.
const Streams = 256

// never is longer than any machine runs. A VM may be paused for days, so the multiplexer must
// not time out.
const never = 10 * 365 * 24 * time.Hour

// Node returns the node's end of a session. Only the node opens streams.
func Node(conn io.ReadWriteCloser) (*yamux.Session, error) {
	return yamux.Client(&guard{ReadWriteCloser: conn}, config())
}

// Init returns the guest's end of a session.
func Init(conn io.ReadWriteCloser) (*yamux.Session, error) {
	return yamux.Server(conn, config())
}

func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog = Streams
	c.EnableKeepAlive = false
	c.ConnectionWriteTimeout = never
	c.StreamOpenTimeout = 0
	// Streams are always closed in both directions, never half-closed.
	c.StreamCloseTimeout = 10 * time.Second
	c.LogOutput = io.Discard
	return c
}

// The parts of the multiplexer's header that the guard checks:
// https://github.com/hashicorp/yamux/blob/master/spec.md
const (
	muxHeader = 12
	muxData   = 0
	muxWindow = 1
	muxAway   = 3
	muxSYN    = 1
)

// guard checks the guest's frames as they are read. It ends the session at the first frame that
// an init never sends: an opened stream or a ping, which would use memory of the node.
type guard struct {
	io.ReadWriteCloser
	header [muxHeader]byte
	have   int
	body   uint32
}

func (g *guard) Read(p []byte) (int, error) {
	n, err := g.ReadWriteCloser.Read(p)
	for at := 0; at < n; {
		if g.body > 0 {
			skip := min(int64(g.body), int64(n-at))
			g.body -= uint32(skip)
			at += int(skip)
			continue
		}
		copied := copy(g.header[g.have:], p[at:n])
		g.have += copied
		at += copied
		if g.have < muxHeader {
			break
		}
		g.have = 0
		if err := g.check(); err != nil {
			return 0, err
		}
	}
	return n, err
}

func (g *guard) check() error {
	version, kind := g.header[0], g.header[1]
	flags := binary.BigEndian.Uint16(g.header[2:])
	switch {
	case version != 0:
		return fmt.Errorf("%w: unknown version %d of the multiplexer", ErrProtocol, version)
	case kind != muxData && kind != muxWindow && kind != muxAway:
		return fmt.Errorf("%w: unknown frame of kind %d of the multiplexer", ErrProtocol, kind)
	case flags&muxSYN != 0:
		return fmt.Errorf("%w: the guest opened a stream", ErrProtocol)
	}
	if kind == muxData {
		g.body = binary.BigEndian.Uint32(g.header[8:])
	}
	return nil
}
