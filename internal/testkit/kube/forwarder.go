package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// forwarder forwards TCP connections to one address, and can be cut.
type forwarder struct {
	port   *reservedPort
	target string
	served sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener          // nil while cut
	open     map[net.Conn]struct{} // both ends of every connection
}

// newForwarder returns a forwarder that is cut.
func newForwarder(target string) (*forwarder, error) {
	port, err := reservePort()
	if err != nil {
		return nil, err
	}
	return &forwarder{port: port, target: target, open: map[net.Conn]struct{}{}}, nil
}

// mend accepts connections, if it does not already.
func (f *forwarder) mend() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener != nil {
		return nil
	}
	listener, err := f.port.listen()
	if err != nil {
		return err
	}
	f.listener = listener
	f.served.Go(func() { f.accept(listener) })
	return nil
}

// cut resets every connection, and refuses new ones.
func (f *forwarder) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener == nil {
		return
	}
	_ = f.listener.Close()
	f.listener = nil
	for c := range f.open {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}

func (f *forwarder) close() error {
	f.cut()
	f.served.Wait()
	return f.port.close()
}

func (f *forwarder) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // closed
		}
		f.served.Go(func() { f.serve(listener, client) })
	}
}

func (f *forwarder) serve(listener net.Listener, client net.Conn) {
	defer f.drop(client)
	if !f.keep(listener, client) {
		return
	}
	var dial net.Dialer
	server, err := dial.DialContext(context.Background(), "tcp", f.target)
	if err != nil {
		return // the server is down, so the client's connection ends too
	}
	defer f.drop(server)
	if !f.keep(listener, server) {
		return
	}
	var copies sync.WaitGroup
	copies.Go(func() { pass(server, client) })
	pass(client, server)
	copies.Wait()
}

// pass copies until one side ends, and passes the end on to the other.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	half, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		_ = errors.Join(to.Close(), from.Close())
	}
}

// keep stores a connection, unless its listener was cut in the meantime.
func (f *forwarder) keep(listener net.Listener, c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener != listener {
		return false
	}
	f.open[c] = struct{}{}
	return true
}

func (f *forwarder) drop(c net.Conn) {
	f.mu.Lock()
	delete(f.open, c)
	f.mu.Unlock()
	_ = c.Close() // cut may have done so
}
