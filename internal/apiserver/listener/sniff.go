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
	// maxPlainRequest bounds the part of a plain request that is read to answer it, in bytes.
	maxPlainRequest = 8 << 10
	// maxDiscarded bounds the input that is read and discarded after the response, in bytes.
	maxDiscarded = 256 << 10
	// answerTimeout bounds the whole response to a plain request.
	answerTimeout = 5 * time.Second
)

// errPlain ends the handshake of a connection that was answered in plain HTTP.
var errPlain = errors.New("refused a client that uses plain http on the TLS port")

// Sniff returns a listener for TLS whose connections check their first byte. If it does not
// start a TLS handshake, the client gets an HTTP response with status 400 that contains the
// https URL, and the connection ends.
func Sniff(listener net.Listener) net.Listener { return sniffer{listener} }

type sniffer struct{ net.Listener }

// Accept does not wait for the first byte, because a silent client would delay all others.
func (s sniffer) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &sniffed{Conn: conn}, nil
}

// sniffed checks the first byte in the first Read, which the TLS server calls in another
// goroutine and with a deadline.
type sniffed struct {
	net.Conn
	once sync.Once
	err  error
}

// NetConn returns the underlying connection.
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

// answer responds to a plain request if possible. The client may not use HTTP at all.
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
	// Closing with unread input would reset the connection, and the response would be lost.
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(c.Conn, maxDiscarded))
	}
}

// host returns the client's Host header, which is used only in the response.
func (c *sniffed) host(request *http.Request) string {
	if request.Host != "" {
		return request.Host
	}
	return c.LocalAddr().String()
}
