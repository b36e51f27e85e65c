package listener

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// recordHandshake is the first byte of every TLS connection (RFC 8446, 5.1).
	recordHandshake = 0x16
	// maxPlainRequest bounds what is read of a plain request to answer it.
	maxPlainRequest = 8 << 10
	// maxDiscarded bounds what is read and thrown away after the answer.
	maxDiscarded = 256 << 10
	// answerTimeout bounds the whole answer to a plain request.
	answerTimeout = 5 * time.Second
)

// errPlain ends the handshake of a connection that was answered in plain HTTP.
var errPlain = errors.New("client spoke plain http on the TLS port and was told so")

// Sniff returns a listener for TLS whose connections look at their first byte.
// Where it does not begin a TLS handshake, the client gets an HTTP answer with
// status 400 that names the https URL, and the connection ends.
func Sniff(listener net.Listener) net.Listener { return sniffer{listener} }

type sniffer struct{ net.Listener }

// Accept does not wait for the first byte: a silent client would hold up all.
func (s sniffer) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &sniffed{Conn: conn}, nil
}

// sniffed looks at the first byte in the first Read, which the TLS server does
// in a goroutine and under a deadline of its own.
type sniffed struct {
	net.Conn
	once sync.Once
	err  error
}

// NetConn returns the connection that is sniffed.
func (c *sniffed) NetConn() net.Conn { return c.Conn }

// Read implements net.Conn.
func (c *sniffed) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	first := 0
	c.once.Do(func() { first, c.err = c.look(p) })
	if first > 0 || c.err != nil {
		return first, c.err
	}
	return c.Conn.Read(p)
}

func (c *sniffed) look(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 || p[0] == recordHandshake {
		return n, err
	}
	c.answer(p[:n])
	return 0, errPlain
}

// answer is best effort: what is on the other side may not be HTTP at all.
func (c *sniffed) answer(read []byte) {
	if c.SetDeadline(time.Now().Add(answerTimeout)) != nil {
		return
	}
	rest := io.MultiReader(bytes.NewReader(read), c.Conn)
	request, err := http.ReadRequest(bufio.NewReader(io.LimitReader(rest, maxPlainRequest)))
	if err != nil {
		return
	}
	message := fmt.Sprintf("This port speaks https only: use https://%s%s\n", c.host(request), request.URL.EscapedPath())
	fmt.Fprintf(c.Conn, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(message), message)
	// Closing with unread input resets the connection, and the answer is lost.
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(c.Conn, maxDiscarded))
	}
}

// host trusts the client's Host header no further than to show it back.
func (c *sniffed) host(request *http.Request) string {
	if request.Host != "" {
		return request.Host
	}
	return c.LocalAddr().String()
}
