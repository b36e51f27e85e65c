package instance

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"sync"
)

// watched is a ResponseWriter whose hijacked connection calls gone when a read from it fails.
// Both protocols read until the client disconnects.
type watched struct {
	http.ResponseWriter
	gone func()
}

// Unwrap allows http.ResponseController to find methods that watched does not implement.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack hijacks the connection.
func (w *watched) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	watch := &watchedConn{Conn: conn, gone: sync.OnceFunc(w.gone)}
	var from io.Reader = watch
	if n := buffered.Reader.Buffered(); n > 0 {
		early := make([]byte, n)
		if _, err := io.ReadFull(buffered.Reader, early); err != nil {
			_ = conn.Close()
			return nil, nil, err
		}
		from = io.MultiReader(bytes.NewReader(early), watch)
	}
	return watch, bufio.NewReadWriter(bufio.NewReader(from), buffered.Writer), nil
}

type watchedConn struct {
	net.Conn
	gone func()
}

// Read calls gone when it fails.
func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.gone()
	}
	return n, err
}
