package dns

import (
	"net"
	"net/netip"
	"sync"
)

// fairQueue divides places among clients. A client may have at most as many places as it leaves
// free. Thus a client that sends many queries, or queries that are never answered, does not block
// other clients.
type fairQueue struct {
	most int

	mu sync.Mutex
	// The fields below are guarded by mu.
	taken int
	of    map[netip.Addr]int
}

func newFairQueue(most int) *fairQueue { return &fairQueue{most: most, of: map[netip.Addr]int{}} }

// acquire returns false if the client may not have another place now.
func (s *fairQueue) acquire(client netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[client] >= s.most-s.taken {
		return false
	}
	s.of[client]++
	s.taken++
	return true
}

func (s *fairQueue) release(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.of[client]--; s.of[client] == 0 {
		delete(s.of, client)
	}
}

// clientOf returns the client's address. It is invalid for an address that is not IP.
func clientOf(a net.Addr) netip.Addr {
	parsed, _ := netip.ParseAddrPort(a.String())
	return parsed.Addr().Unmap()
}

// sharing is a listener that rejects clients with more connections than their share.
type sharing struct {
	net.Listener
	fairQueue *fairQueue
}

// Accept implements net.Listener.
func (l sharing) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(conn.RemoteAddr())
		if l.fairQueue.acquire(client) {
			return &shared{Conn: conn, release: sync.OnceFunc(func() { l.fairQueue.release(client) })}, nil
		}
		_ = conn.Close() // it may come again
	}
}

// shared is a connection that occupies a place.
type shared struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *shared) Close() error {
	c.release()
	return c.Conn.Close()
}
